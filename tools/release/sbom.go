package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// writeSBOM writes the modules of a binary, which its build info names.
func writeSBOM(w io.Writer, binary string) error {
	f, err := os.Open(binary)
	if err != nil {
		return err
	}
	defer f.Close()
	build, err := buildinfo.Read(f)
	if err != nil {
		return fmt.Errorf("read how '%s' was built: %w", binary, err)
	}
	document := describe(build)
	document.DocumentName = filepath.Base(binary)
	return spdxjson.Write(document, w, spdxjson.Indent("  "))
}

// describe does not use the clock: the time is the commit's, and the document's namespace comes from the version, the
// commit and the platform.
func describe(build *debug.BuildInfo) *spdx.Document {
	settings := map[string]string{}
	for _, s := range build.Settings {
		settings[s.Key] = s.Value
	}
	created := settings["vcs.time"]
	if created == "" {
		created = "1970-01-01T00:00:00Z"
	}
	document := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentNamespace: fmt.Sprintf("https://%s/spdx/%s-%s-%s-%s", build.Main.Path, build.Main.Version, settings["vcs.revision"], settings["GOOS"], settings["GOARCH"]),
		CreationInfo:      &spdx.CreationInfo{Created: created, Creators: []common.Creator{{CreatorType: "Tool", Creator: "logplane-release"}}},
	}
	main := packageOf("Package-main", build.Main)
	main.PrimaryPackagePurpose = "APPLICATION"
	document.Packages = append(document.Packages, main,
		packageOf("Package-go", debug.Module{Path: "stdlib", Version: strings.TrimPrefix(build.GoVersion, "go")}))
	for i, module := range build.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		document.Packages = append(document.Packages, packageOf(common.ElementID(fmt.Sprintf("Package-%d", i)), *module))
	}
	relate := func(from common.ElementID, how string, to common.ElementID) {
		document.Relationships = append(document.Relationships, &spdx.Relationship{
			RefA: common.DocElementID{ElementRefID: from}, RefB: common.DocElementID{ElementRefID: to}, Relationship: how,
		})
	}
	relate("DOCUMENT", "DESCRIBES", main.PackageSPDXIdentifier)
	for _, p := range document.Packages[1:] {
		relate(main.PackageSPDXIdentifier, "DEPENDS_ON", p.PackageSPDXIdentifier)
	}
	return document
}

func packageOf(id common.ElementID, module debug.Module) *spdx.Package {
	p := &spdx.Package{
		PackageSPDXIdentifier: id, PackageName: module.Path, PackageVersion: module.Version, PackageDownloadLocation: "NOASSERTION",
		PackageLicenseConcluded: "NOASSERTION", PackageLicenseDeclared: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: "PACKAGE-MANAGER", RefType: "purl", Locator: "pkg:golang/" + module.Path + "@" + module.Version,
		}},
	}
	// The hash in go.sum covers the names and contents of a module's files. SPDX has no field for such a hash, so it is
	// in a comment.
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(sum) > 0 {
		p.PackageComment = "go.sum h1, a SHA-256 over the module's files: " + hex.EncodeToString(sum)
	}
	return p
}
