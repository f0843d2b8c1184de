// A module of its own, without requirements: it changes no version of the modules that import it.
module github.com/logplane/logplane/logplanecmd

go 1.24.0
