package projection

import (
	"context"
	"fmt"
	"time"
)

// EventAt returns the version that the key's event of a revision made, a tombstone for a deletion; false if the event
// is no longer kept. It reads one event, where GetAt below the floor may have to read many.
func (p *Projection) EventAt(ctx context.Context, key string, at Revision) (row Row, found bool, err error) {
	v, err := p.AtLeast(ctx, at)
	if err != nil {
		return Row{}, false, err
	}
	err = v.retry(ctx, func(v *View) error {
		row, found, err = v.eventAt(ctx, key, at)
		return err
	})
	return row, found, err
}

// TimeOf is the log's time of the first event from a revision on, or the zero time if there is none.
func (p *Projection) TimeOf(ctx context.Context, at Revision) (time.Time, error) {
	v, err := p.AtLeast(ctx, at)
	if err != nil {
		return time.Time{}, err
	}
	e, _, err := v.eventFrom(ctx, at, v.Revision())
	if err != nil {
		return time.Time{}, fmt.Errorf("look for the time of revision %d: %w", at, err)
	}
	return e.Time, nil
}
