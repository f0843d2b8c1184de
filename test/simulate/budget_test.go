package simulate

import (
	"reflect"
	"sync"
)

// budgets checks that a process's caches keep their budgets. No API tells how much the caches hold, so budgets reads
// their fields.
func (w *world) budgets(p *process) {
	if w.config.history > 0 || len(w.config.checkpoints) > 0 { // other caches have a share too
		return
	}
	w.budget(p, "blocks", reflect.ValueOf(p.projection).Elem().FieldByName("cache").FieldByName("blocks").Elem())
	if p.objects != nil {
		w.budget(p, "objects", reflect.ValueOf(p.objects).Elem().FieldByName("decoded").Elem())
	}
}

// budget checks one cache.Cache, which has a budget of its own in this test. No goroutine holds the cache's lock across
// a request. Bytes that are held outside of the cache may exceed the budget; even then, the cache may use three eighths
// of the budget.
func (w *world) budget(p *process, of string, cache reflect.Value) {
	budget := cache.FieldByName("of").Elem()
	mu := (*sync.Mutex)(budget.FieldByName("mu").Addr().UnsafePointer())
	mu.Lock()
	defer mu.Unlock()
	used, all, limit := cache.FieldByName("bytes").Int(), budget.FieldByName("bytes").Int(), budget.FieldByName("limit").Int()
	room := max(limit-budget.FieldByName("held").Int(), limit*3/8)
	held := sum(cache.FieldByName("entries"))
	if owned := sum(budget.FieldByName("owners")); held > room || held != used || held != owned || held != all {
		w.violated("budget", "%s keeps %d bytes of %s, %d of them owned, counts %d of %d, and may keep %d", p.name, held, of, owned, used, all, room)
	}
}

// sum adds up the bytes of a map's values.
func sum(of reflect.Value) (bytes int64) {
	for each := of.MapRange(); each.Next(); {
		bytes += each.Value().Elem().FieldByName("bytes").Int()
	}
	return bytes
}
