// What a release is made with, apart from the product: it never enters its dependencies.
module github.com/logplane/logplane/tools/release

go 1.26.0

require (
	github.com/spdx/tools-golang v0.5.7
	golang.org/x/crypto/x509roots/fallback v0.0.0-20261030153154-30a33513ff6d
)

require github.com/anchore/go-struct-converter v0.1.0 // indirect
