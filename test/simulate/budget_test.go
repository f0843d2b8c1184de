package simulate

import (
	"reflect"
	"sync"
)

// budgets says whether a process's caches keep theirs. No API tells what they hold.
func (w *world) budgets(p *process) {
	w.budget(p, "blocks", reflect.ValueOf(p.projection).Elem().FieldByName("cache").Elem().FieldByName("blocks").Elem())
	if p.objects != nil {
		w.budget(p, "objects", reflect.ValueOf(p.objects).Elem().FieldByName("decoded").Elem())
	}
}

// budget judges one cache.Cache, whose lock nobody holds across a request.
func (w *world) budget(p *process, of string, cache reflect.Value) {
	mu := (*sync.Mutex)(cache.FieldByName("mu").Addr().UnsafePointer())
	mu.Lock()
	defer mu.Unlock()
	used, budget := cache.FieldByName("bytes").Int(), cache.FieldByName("budget").Int()
	held := sum(cache.FieldByName("entries"))
	if owned := sum(cache.FieldByName("owners")); held > budget || held != used || held != owned {
		w.violated("budget", "%s keeps %d bytes of %s, %d of them owned, counts %d, and may keep %d", p.name, held, of, owned, used, budget)
	}
}

// sum adds up the bytes of a map's values.
func sum(of reflect.Value) (bytes int64) {
	for each := of.MapRange(); each.Next(); {
		bytes += each.Value().Elem().FieldByName("bytes").Int()
	}
	return bytes
}
