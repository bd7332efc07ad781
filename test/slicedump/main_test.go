package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/mig/migtest"
)

func dump(t *testing.T, release string) (machines map[string]int, together int) {
	t.Helper()
	var out bytes.Buffer
	if err := run([]string{release}, &out); err != nil {
		t.Fatal(err)
	}
	machines = map[string]int{}
	for decoder := json.NewDecoder(&out); ; {
		var line Line
		if err := decoder.Decode(&line); errors.Is(err, io.EOF) {
			return machines, together
		} else if err != nil {
			t.Fatal(err)
		}
		machines[line.Machine] += len(line.Slice.Spec.Devices)
		if len(line.Slice.Spec.SharedCounters) > 0 && len(line.Slice.Spec.Devices) > 0 {
			together++
		}
	}
}

// Both releases get the same devices, of every machine; only the older one gets them with counters.
func TestDump(t *testing.T) {
	old, together := dump(t, "1.34")
	now, apart := dump(t, "1.37.2")
	if len(old) != 4*len(migtest.Presets()) || together == 0 || apart != 0 {
		t.Errorf("%d machines, %d slices with both in 1.34, %d in 1.37", len(old), together, apart)
	}
	for machine, n := range old {
		if n == 0 || n != now[machine] {
			t.Errorf("%s has %d devices in 1.34, %d in 1.37", machine, n, now[machine])
		}
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"1.34", "1.35"}, {"new"}} {
		if err := run(args, io.Discard); err == nil || !strings.Contains(err.Error(), "release") {
			t.Errorf("%q: error %v", args, err)
		}
	}
}
