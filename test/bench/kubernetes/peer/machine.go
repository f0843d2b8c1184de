package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// syncs is how many small writes are synced to learn how long the disk takes.
const syncs = 200

// describeMachine prints what the figures depend on besides the processors: the kernel, the load of other processes,
// and how long the disk takes to sync an append of 4 KiB.
func describeMachine() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("ask for the kernel's name: %w", err)
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return fmt.Errorf("ask for the machine's load: %w", err)
	}
	took, err := timeSyncs()
	if err != nil {
		return fmt.Errorf("ask for the disk's speed: %w", err)
	}
	fmt.Printf("Linux %s; load before the first round %s; a synced append of 4 KiB takes p50 %s ms, p99 %s ms.\n\n",
		unix.ByteSliceToString(name.Release[:]), bytes.Fields(load)[0], short(quantile(took, 0.5)), short(quantile(took, 0.99)))
	return nil
}

// timeSyncs returns how many milliseconds each sync takes where the sides have their folders.
func timeSyncs() (took []float64, err error) {
	folder, err := os.MkdirTemp("", "peer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	file, err := os.Create(filepath.Join(folder, "appends"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	page := make([]byte, 4<<10)
	for range syncs {
		begun := time.Now()
		if _, err := file.Write(page); err != nil {
			return nil, err
		}
		if err := file.Sync(); err != nil {
			return nil, err
		}
		took = append(took, milliseconds(time.Since(begun)))
	}
	return took, nil
}
