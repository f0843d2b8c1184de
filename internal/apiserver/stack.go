package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deepStack is what grows a stack to the 32 KiB that a write needs.
const deepStack = 16 << 10

// deepen grows the goroutine's stack at once, while there is little on it. Upstream runs each write in a goroutine of
// its own, whose stack would double again and again, and each time be copied with all that is on it by then.
//
//go:noinline
func deepen(i int) byte {
	var room [deepStack]byte
	return room[i]
}

// deepening is what upstream's create handler calls first in that goroutine.
type deepening struct{ runtime.ObjectCreater }

// New implements runtime.ObjectCreater.
func (c deepening) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	deepen(0)
	return c.ObjectCreater.New(kind)
}
