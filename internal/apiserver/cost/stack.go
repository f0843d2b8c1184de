package cost

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deepStack is the size of a stack frame that grows the stack to the 32 KiB that a write needs.
const deepStack = 16 << 10

// deepen grows the goroutine's stack at once, while the stack is nearly empty. Upstream runs each write in a goroutine
// of its own, whose stack would otherwise double again and again, with a copy and a walk over its frames each time.
// BenchmarkDeepen shows that repeated doubling takes several times as long. deepen can be deleted once upstream serves
// a write in the request's own goroutine.
//
//go:noinline
func deepen(i int) byte {
	var room [deepStack]byte
	return room[i]
}

// Deepening returns a creater that first deepens the stack and then makes objects with c. Upstream's create handler
// calls the creater first in the goroutine of the write.
func Deepening(c runtime.ObjectCreater) runtime.ObjectCreater { return deepening{c} }

// deepening is the creater that Deepening returns.
type deepening struct{ runtime.ObjectCreater }

// New implements runtime.ObjectCreater.
func (c deepening) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	deepen(0)
	return c.ObjectCreater.New(kind)
}
