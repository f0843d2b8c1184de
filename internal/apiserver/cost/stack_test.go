package cost

import "testing"

// frames takes some 24 KiB of stack, as upstream's handler of a write does, in frames of a hundred bytes or two.
//
//go:noinline
func frames(n int) int {
	var room [128]byte
	if n == 0 {
		return int(room[0])
	}
	room[n%len(room)] = byte(n)
	return frames(n-1) + int(room[(n+1)%len(room)])
}

// BenchmarkDeepen measures a goroutine that needs a deep stack, with and without deepen.
func BenchmarkDeepen(b *testing.B) {
	for name, first := range map[string]func(){"Doubled": func() {}, "Deepened": func() { deepen(0) }} {
		b.Run(name, func(b *testing.B) {
			done := make(chan int)
			for b.Loop() {
				go func() {
					first()
					done <- frames(130)
				}()
				<-done
			}
		})
	}
}
