package main

import (
	"io"
	"net"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	floorWatches = 200
	floorFrame   = 1400 // bytes, about the size of an event of a ConfigMap of 1 KiB
	floorRounds  = 100
	floorPause   = 40 * time.Millisecond
)

// bareWrites returns lower bounds for the times of any fan-out on this machine. It writes one frame to all connections,
// on all processors at once, and does nothing else. The results are the times from the first write until the frame has
// arrived at half of the connections, and at 99 % of them. Both are medians over the rounds, in milliseconds.
func bareWrites() (half, nearlyAll float64, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	defer listener.Close()
	writers, readers := make([]net.Conn, floorWatches), make([]*arrivals, floorWatches)
	for i := range readers {
		if readers[i], err = dialArrivals(listener.Addr().String(), watchTimeout); err != nil {
			return 0, 0, err
		}
		defer readers[i].Close()
		if writers[i], err = listener.Accept(); err != nil {
			return 0, 0, err
		}
		defer writers[i].Close()
	}
	var halves, nearlyAlls []float64
	for range floorRounds {
		time.Sleep(floorPause) // the processors are then as idle as between two creates
		began := time.Now()
		if err := writeAll(writers); err != nil {
			return 0, 0, err
		}
		lags, frame := make([]float64, floorWatches), make([]byte, floorFrame)
		for i, r := range readers {
			if _, err := io.ReadFull(r, frame); err != nil {
				return 0, 0, err
			}
			lags[i] = milliseconds(r.last.Sub(began))
		}
		halves, nearlyAlls = append(halves, quantile(lags, 0.5)), append(nearlyAlls, quantile(lags, 0.99))
	}
	return quantile(halves, 0.5), quantile(nearlyAlls, 0.5), nil
}

func writeAll(to []net.Conn) error {
	frame, workers := make([]byte, floorFrame), runtime.GOMAXPROCS(0)
	var group errgroup.Group
	for w := range workers {
		group.Go(func() error {
			for i := w; i < len(to); i += workers {
				if _, err := to[i].Write(frame); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}
