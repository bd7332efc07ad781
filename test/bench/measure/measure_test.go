package measure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/bench/bed"
	"github.com/gpu-dra/driver/test/bench/sample"
)

const ms = time.Millisecond

func TestReplaceDurably(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"one", "two"} {
		if err := replaceDurably(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%q, %v; want %q", got, err, content)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v; want one", len(entries), err)
	}
	if err := replaceDurably(filepath.Join(dir, "absent", "f"), nil); err == nil {
		t.Error("no error without a directory")
	}
}

func TestTally(t *testing.T) {
	got := tally([]bed.Request{{Verb: "list", Resource: "a"}, {Verb: "list", Resource: "a"}, {Verb: "update", Resource: "b"}})
	want := Idle{Requests: map[string]int{"list a": 2, "update b": 1}, Writes: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tally (-want +got):\n%s", diff)
	}
}

func TestCount(t *testing.T) {
	var s Starts
	s.count([]bed.Request{{Verb: "list", Resource: "resourceslices"}, {Verb: "create", Resource: "resourceslices"}, {Verb: "patch", Resource: "events"}})
	if s.Writes != 2 || s.SliceWrites != 1 {
		t.Errorf("%d writes, %d of slices; want 2 and 1", s.Writes, s.SliceWrites)
	}
}

func TestThrottled(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	text := `I1 request.go:1] "Waited before sending request" delay="1.0s" reason="client-side throttling, not priority and fairness" verb="GET"` + "\nother\n"
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := throttled(log); err != nil || n != 1 {
		t.Errorf("%d, %v; want 1", n, err)
	}
	if _, err := throttled(log + ".absent"); err == nil {
		t.Error("no error without a log")
	}
}

func TestWeigh(t *testing.T) {
	slice := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("m", 10_000)}}}}
	for _, name := range []string{"a", "b"} {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			resourceapi.QualifiedName("only-" + name): {StringValue: ptr.To("v")}, "type": {StringValue: ptr.To("gpu")},
		}})
	}
	var p Preset
	for range 2 {
		if err := p.weigh(&slice); err != nil {
			t.Fatal(err)
		}
	}
	if p.Devices != 4 || p.Attributes != 2 {
		t.Errorf("%d devices with up to %d attributes, want 4 with 2", p.Devices, p.Attributes)
	}
	if p.JSON == 0 || p.JSON > 2000 || p.Protobuf == 0 || p.Protobuf >= p.JSON {
		t.Errorf("JSON %d and protobuf %d bytes: managed fields count not, and protobuf is smaller", p.JSON, p.Protobuf)
	}
}

// A report says what was measured, in numbers that a reader can check.
func TestReports(t *testing.T) {
	rounds := func(d ...time.Duration) sample.Rounds { return sample.Rounds{d, d} }
	level := func(prepared int, prepare time.Duration) Level {
		return Level{
			Prepared: prepared, Files: rounds(2*ms, 2*ms), Get: rounds(2*ms, 2*ms), Floor: rounds(4*ms, 4*ms),
			Prepare: rounds(prepare, prepare), Unprepare: rounds(2*ms, 2*ms), DiskPrepare: 24 << 10, DiskUnprepare: 8 << 10,
		}
	}
	for name, tc := range map[string]struct {
		report string
		want   []string
	}{
		"prepare": {
			Prepares{Title: "T", Levels: []Level{level(0, 5*ms), level(100, 6*ms)}}.String(),
			[]string{"### T", "| 1.25 × ", "| 1.50 × ", "| 0.50 × ", "prepare 10.0 µs", "| 24 ", "| 8 ", "2 rounds of 2 claims"},
		},
		"files": {Prepares{Files: map[string]int64{"a": 7, "b": 5}}.FileSizes(), []string{"| `a` ", "| 7 ", "| 12 "}},
		"callers": {
			Callers{Callers: 8, PerRound: 3, One: []float64{100, 90}, Many: []float64{200, 180}, Single: rounds(5 * ms), Batch: rounds(15 * ms), BatchFloor: rounds(30 * ms)}.String(),
			[]string{"2.00 ×", "3.00 ×", "0.50 ×", "| 95 ", "| 190 "},
		},
		"burst": {Burst{Claims: 9, Callers: 3, Waits: 4, Took: sample.Series{1500 * ms}}.String(), []string{"9 claims by 3 callers", "1.50 s", "4 times"}},
		"starts": {
			Starts{Registered: sample.Series{100 * ms}, Published: sample.Series{1100 * ms}, Prepared: 256, Restarted: sample.Series{200 * ms, 300 * ms}, Crashed: sample.Series{250 * ms}, Writes: 2}.String(),
			[]string{"| 100.00 ", "1100.00", "200.00 to 300.00", "256 prepared", "3 restarts", "wrote slices 0 times", "anything at all 2 times"},
		},
		"memory": {
			Memories{Prepared: 256, Idle: []bed.Memory{{RSS: 40 << 20, Anon: 10 << 20, File: 30 << 20, Threads: 9}}, Full: []bed.Memory{{RSS: 50 << 20}, {RSS: 52 << 20}}}.String(),
			[]string{"| 40.0 ", "| 10.0 ", "| 30.0 ", "| 9 ", "| 51.0 ", "256 claims"},
		},
		"idle": {
			Idle{Watched: 3 * time.Minute, CPU: 360 * time.Millisecond, GPUs: 8, Scrapes: 12, PerScrape: 2500 * time.Microsecond, Requests: map[string]int{"watch x": 2, "list x": 1}}.String(),
			[]string{"180 s", "1 × list x, 2 × watch x", "Writes: 0", "8 GPUs", "12 scrapes", "0.36 s, 0.20 % of a core", "2.5 ms"},
		},
		"idle without requests": {Idle{}.String(), []string{"none", "Writes: 0"}},
		"sizes":                 {PresetSizes([]Preset{{Name: "p", Devices: 8, Slices: 1, JSON: 2048, Protobuf: 1024, Attributes: 20}}), []string{"| p ", "| 2.0 ", "| 1.0 ", "| 128 "}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, want := range tc.want {
				if !strings.Contains(tc.report, want) {
					t.Errorf("no %q in\n%s", want, tc.report)
				}
			}
		})
	}
}

func TestPause(t *testing.T) {
	if err := pause(t.Context(), time.Nanosecond); err != nil {
		t.Error(err)
	}
	done := make(chan struct{})
	close(done)
	if err := atLeast(t.Context(), 0, done); err != nil {
		t.Error(err)
	}
}
