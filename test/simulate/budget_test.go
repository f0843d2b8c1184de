package simulate

import (
	"reflect"
	"sync"
)

// budgets says whether a process's caches keep theirs. No API tells what they hold.
func (w *world) budgets(p *process) {
	blocks := reflect.ValueOf(p.projection).Elem().FieldByName("cache").Elem()
	unlock := lockOf(blocks)
	used, budget := blocks.FieldByName("used").Int(), blocks.FieldByName("budget").Int()
	unlock()
	if used < 0 || used > budget {
		w.violated("budget", "%s keeps %d bytes of blocks, of %d", p.name, used, budget)
	}
	if p.objects == nil {
		return
	}
	objects := reflect.ValueOf(p.objects).Elem()
	defer lockOf(objects)()
	used, budget = objects.FieldByName("bytes").Int(), objects.FieldByName("budget").Int()
	held := int64(0)
	for each := objects.FieldByName("entries").MapRange(); each.Next(); {
		held += each.Value().Elem().FieldByName("Value").Elem().Elem().FieldByName("bytes").Int()
	}
	if held > budget || held != used {
		w.violated("budget", "%s keeps %d bytes of objects, counts %d, and may keep %d", p.name, held, used, budget)
	}
}

// lockOf takes a cache's lock, which nobody holds across a request.
func lockOf(cache reflect.Value) (unlock func()) {
	mu := (*sync.Mutex)(cache.FieldByName("mu").Addr().UnsafePointer())
	mu.Lock()
	return mu.Unlock
}
