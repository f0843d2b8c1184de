package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deepStack is the size of a stack frame that grows the stack to the 32 KiB that a write needs.
const deepStack = 16 << 10

// deepen grows the goroutine's stack at once, while it is nearly empty. Upstream runs each write in a goroutine of its
// own. Otherwise that goroutine's stack would double again and again, and its content would be copied each time.
//
//go:noinline
func deepen(i int) byte {
	var room [deepStack]byte
	return room[i]
}

// deepening grows the stack in New, which upstream's create handler calls first in that goroutine.
type deepening struct{ runtime.ObjectCreater }

// New implements runtime.ObjectCreater.
func (c deepening) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	deepen(0)
	return c.ObjectCreater.New(kind)
}
