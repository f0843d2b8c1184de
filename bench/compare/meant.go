package main

import "regexp"

// intention is a difference that is meant, and why.
type intention struct {
	request, at string // regular expressions
	why         string
	maybe       bool // it is not there in every run
	matches     func(d difference) bool
}

// intentions are all of them. An entry that matches nothing in a whole run must go.
var intentions = []intention{}

func meant(d difference) *intention {
	for i := range intentions {
		why := &intentions[i]
		if why.matches == nil {
			request, at := regexp.MustCompile(why.request), regexp.MustCompile("^(?:"+why.at+")$")
			why.matches = func(d difference) bool { return request.MatchString(d.request) && at.MatchString(d.at) }
		}
		if why.matches(d) {
			return why
		}
	}
	return nil
}
