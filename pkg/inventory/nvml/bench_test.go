package nvml_test

import (
	"syscall"
	"testing"
	"time"
)

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkCost is the look at the hardware that an idle plugin takes again and again.
func BenchmarkCost(b *testing.B) {
	m := machineWith(b, "hgx-h100-8", time.Minute)
	if _, err := m.scanner.Scan(b.Context()); err != nil {
		b.Fatal(err)
	}
	before := processorTime(b)
	for b.Loop() {
		if _, err := m.scanner.Scan(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}
