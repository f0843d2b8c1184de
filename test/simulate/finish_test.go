package simulate

import (
	"time"
)

// finish lets all processes and requests continue without faults, and then checks the final state.
func (w *world) finish() {
	w.calm = true
	w.say("all go on")
	for rests := 0; rests < 2000; {
		w.comeBack()
		w.passes()
		w.settle()
		w.learn()
		pending := w.pending()
		if len(pending) == 0 && len(w.inFlight) == 0 && len(w.behind()) == 0 {
			break
		}
		if len(pending) == 0 {
			rests++
			w.rest(100 * time.Millisecond)
			continue
		}
		w.release(pending[0], 1, works)
	}
	for _, r := range w.inFlight {
		w.violated("hang", "%v does not end", r)
	}
	for _, x := range w.behind() {
		w.violated("watch", "%v stays at %d", x, x.position)
	}
	if w.failed {
		return
	}
	if w.fork != nil {
		w.whole()
		w.fence()
		if w.fork != nil || w.failed {
			return
		}
		w.whole()
		return
	}
	if !w.broken() {
		w.writable()
	}
	if w.failed {
		return
	}
	w.aged()
	w.hidden()
	log, p, err := w.operator()
	if err == nil {
		_, err = p.Commit(w.life) // this makes the first root
	}
	if err == nil && w.config.mortal {
		err = w.expireAll(log, p)
	}
	if err != nil {
		w.violated("verify", "%v", err)
		return
	}
	for len(w.processes) > 0 {
		w.kill(w.processes[0])
	}
	w.settle()
	w.learn()
	w.whole()
	w.tended()
}

// writable checks that every process of the epoch can write when there are no faults.
func (w *world) writable() {
	for _, p := range keep(w.processes, func(p *process) bool { return p.epoch == w.epoch }) {
		var r *request
		for try := 0; try == 0 || r.err != nil && try < 20; try++ {
			if try > 0 {
				w.rest(time.Second) // as a client that got a Retry-After does
			}
			r = &request{process: p, verb: "create", kind: "events", name: "last-" + p.name}
			w.begin(r)
			for len(w.inFlight) > 0 {
				w.settle()
				w.learn()
				if len(w.inFlight) == 0 {
					break
				}
				if pending := w.pending(); len(pending) > 0 {
					w.release(pending[0], 1, works)
					continue
				}
				w.rest(time.Second)
			}
		}
		if r.err != nil {
			w.violated("cannot write", "%v: %v", r, r.err)
		}
	}
}
