package main

import (
	"encoding/pem"
	"io"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// writeRoots writes the certificate authorities. It leaves out those that are trusted under a condition, such as for
// certificates from before a date, because a file of certificates cannot express that.
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
