package subscribe

import "context"

// Hurry lets watches linger no longer than they must for a bookmark.
func (c *Config) Hurry() { c.linger = glanceSeconds }

// Aims takes aim once for each time, hearing announcements or not, and returns whether they are relied on after it.
func (c Config) Aims(ctx context.Context, hears ...bool) (sure []bool, err error) {
	c = c.withDefaults()
	api, err := newAPI(ctx, c)
	if err != nil {
		return nil, err
	}
	r := &run{config: c, api: api, bell: &bell{unsure: true}}
	for _, h := range hears {
		if err := r.aim(ctx, h); err != nil {
			return nil, err
		}
		sure = append(sure, !r.bell.unsure)
	}
	return sure, nil
}
