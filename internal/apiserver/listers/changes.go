package listers

import "github.com/logplane/logplane/projection"

// Changes finds the rows that have changed between two calls of Forward, for a caller that keeps values computed from
// rows. The caller must serialize the calls.
type Changes struct {
	projection *projection.Projection
	// seen is the revision up to which the changes have been reported.
	seen projection.Revision
}

// NewChanges returns Changes of the rows of a projection.
func NewChanges(p *projection.Projection) Changes { return Changes{projection: p} }

// Forward returns the newest view. Before it returns, it calls mark with each row that has changed since the last call,
// or calls forget if any row may have changed.
func (c *Changes) Forward(mark func(row string), forget func()) (*projection.View, error) {
	v := c.projection.Current()
	if v == nil {
		return nil, errNoView
	}
	if v.Revision() > c.seen && !v.Since(c.seen, mark) {
		forget()
	}
	c.seen = v.Revision()
	return v, nil
}
