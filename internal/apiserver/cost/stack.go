package cost

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

// Deepening makes objects as c does, and deepens the stack before. It is what upstream's create handler calls first in
// that goroutine.
func Deepening(c runtime.ObjectCreater) runtime.ObjectCreater { return deepening{c} }

// deepening is what Deepening returns.
type deepening struct{ runtime.ObjectCreater }

// New implements runtime.ObjectCreater.
func (c deepening) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	deepen(0)
	return c.ObjectCreater.New(kind)
}
