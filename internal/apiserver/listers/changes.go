package listers

import "github.com/logplane/logplane/projection"

// Changes finds the rows that have changed between two questions, for a user that keeps values computed from rows. The
// user must serialize the questions.
type Changes struct {
	projection *projection.Projection
	// seen is the revision up to which the changes have been reported.
	seen projection.Revision
}

// NewChanges returns Changes of the rows of a projection.
func NewChanges(p *projection.Projection) Changes { return Changes{projection: p} }

// Forward returns the newest view. Before that it calls mark with each row that has changed since the last question, or
// forget if any row may have changed.
func (c *Changes) Forward(mark func(row string), forget func()) (*projection.View, error) {
	v := c.projection.Current()
	if v == nil {
		return nil, ErrNoView
	}
	if v.Revision() > c.seen && !v.Since(c.seen, mark) {
		forget()
	}
	c.seen = v.Revision()
	return v, nil
}
