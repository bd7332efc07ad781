package takeover_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/takeover"
)

// switched is a node whose driver was switched.
type switched struct {
	takeover.File
	devices map[string]device.Device
	// records are what was adopted and not unprepared since, and fails is what cannot be.
	records map[types.UID]*journal.Record
	fails   types.UID
}

func newSwitched(t *testing.T, checkpoint []byte) *switched {
	t.Helper()
	s := &switched{
		File:    takeover.File{Path: filepath.Join(t.TempDir(), takeover.FileName), Driver: driver, Pool: pool, BootID: "boot-1"},
		devices: node(), records: map[types.UID]*journal.Record{},
	}
	s.put(t, checkpoint)
	return s
}

func (s *switched) put(t *testing.T, checkpoint []byte) {
	t.Helper()
	if err := os.WriteFile(s.Path, checkpoint, 0o600); err != nil {
		t.Fatal(err)
	}
}

// enters has a look by a process that knows nothing but the files.
func (s *switched) enters(t *testing.T, want ...types.UID) {
	t.Helper()
	var got []types.UID
	s.Enter(t.Context(), func(_ context.Context, r *journal.Record) (bool, error) {
		if r.UID == s.fails {
			return false, errors.New("disk full")
		}
		if s.records[r.UID] != nil {
			return false, nil
		}
		s.records[r.UID] = r
		got = append(got, r.UID)
		return true, nil
	}, s.devices)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entered (-want +got):\n%s", diff)
	}
}

func (s *switched) pending(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, d := range s.Pending(s.devices) {
		got = append(got, d.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
}

// lies tells which files there are.
func (s *switched) lies(t *testing.T, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(s.Path))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, strings.TrimPrefix(e.Name(), takeover.FileName))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// A claim waits for a GPU that is missing, whole, while others are entered once.
func TestEnterWaitsForDevices(t *testing.T) {
	for name, checkpoint := range map[string][]byte{
		"with a boot id": golden(t),
		"without one":    []byte(strings.Replace(string(golden(t)), `"boot-1"`, `""`, 1)),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSwitched(t, checkpoint)
			delete(s.devices, "gpu-b")
			s.enters(t, "u-gpu", "u-started")
			s.pending(t) // the other device is for looking only
			s.lies(t, "", ".entered")

			delete(s.records, "u-gpu")
			delete(s.devices, "gpu-c") // that of a claim which was entered
			s.enters(t)

			s.devices = node()
			s.enters(t, "u-mig")
			s.lies(t, ".taken-over")
			if got := len(s.records["u-mig"].Devices); got != 2 {
				t.Errorf("entered with %d devices", got)
			}
			s.enters(t)
			s.pending(t)
		})
	}
}

// Its other devices are in use meanwhile.
func TestPendingDevices(t *testing.T) {
	s := newSwitched(t, golden(t))
	delete(s.devices, "gpu-d")
	s.enters(t, "u-gpu", "u-started")
	s.pending(t, "gpu-b")
}

// A reboot ends all containers: what is there of a claim is entered, and nothing waits.
func TestEnterAfterAReboot(t *testing.T) {
	for name, boot := range map[string]string{"with a boot id": "boot-1", "without one": ""} {
		s := newSwitched(t, []byte(strings.Replace(string(golden(t)), "boot-1", boot, 1)))
		delete(s.devices, "gpu-a")
		delete(s.devices, "gpu-d")
		s.enters(t, "u-started")
		s.BootID = "boot-2"
		s.enters(t, "u-mig")
		s.lies(t, ".taken-over")
		if r := s.records["u-mig"]; r == nil || len(r.Devices) != 1 || r.BootID != "boot-1" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// What cannot be entered is tried again, and what was entered before is not.
func TestEnterTriesAgain(t *testing.T) {
	s := newSwitched(t, golden(t))
	s.fails = "u-started"
	s.enters(t, "u-gpu", "u-mig")
	s.lies(t, "", ".entered")
	s.fails = ""
	clear(s.records)
	s.enters(t, "u-started")
	s.lies(t, ".taken-over")
}

// What is noted of a checkpoint says nothing of another one, nor does a note that was torn.
func TestEnterAnotherCheckpoint(t *testing.T) {
	for name, change := range map[string]func(s *switched) error{
		"another": func(s *switched) error { return os.WriteFile(s.Path, append(golden(t), '\n'), 0o600) },
		"torn":    func(s *switched) error { return os.WriteFile(s.Path+".entered", []byte("{"), 0o600) },
	} {
		s := newSwitched(t, golden(t))
		delete(s.devices, "gpu-d")
		s.enters(t, "u-gpu", "u-started")
		if err := change(s); err != nil {
			t.Fatal(err)
		}
		clear(s.records)
		s.enters(t, "u-gpu", "u-started")
		if got := slices.Sorted(maps.Keys(s.records)); len(got) != 2 {
			t.Errorf("%s: %v", name, got)
		}
	}
	// One that is nothing is left alone.
	s := newSwitched(t, []byte("{}"))
	s.enters(t)
	s.pending(t)
	s.lies(t, "")
}
