package main

import (
	"encoding/pem"
	"io"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// writeRoots writes the certificate authorities. It leaves out authorities that are trusted only under a condition,
// such as a latest date of the certificates that they signed, because a file of certificates cannot express a
// condition.
func writeRoots(w io.Writer) error {
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return err
		}
	}
	return nil
}
