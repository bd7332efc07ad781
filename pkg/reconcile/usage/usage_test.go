package usage_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/reconcile/usage"
)

type hardware struct {
	processes map[inventory.GPUID][]inventory.Process
	instances []inventory.MIGInstance
	err       error
}

func (h hardware) Processes(_ context.Context, gpu inventory.GPUID) ([]inventory.Process, error) {
	return slices.Clone(h.processes[gpu]), h.err
}

func (h hardware) MIG(context.Context, inventory.GPUID) (inventory.MIG, error) {
	return inventory.MIG{Instances: h.instances}, h.err
}

var (
	first  = pci.Address{Bus: 1}
	second = pci.Address{Bus: 2}
)

func id(at pci.Address) inventory.GPUID { return inventory.GPUID{PCI: at, UUID: "GPU-" + at.String()} }

func owns(partitions ...string) *journal.Record {
	r := &journal.Record{UID: "u", Created: time.Unix(1_700_000_100, 0)}
	for _, p := range partitions {
		r.Devices = append(r.Devices, journal.Device{Name: "gpu-1" + p, PCI: first, GPUUUID: "GPU-" + first.String(), Partition: p})
	}
	return r
}

func TestUse(t *testing.T) {
	h := hardware{
		processes: map[inventory.GPUID][]inventory.Process{
			id(first):  {{PID: 7, Instance: 3}, {PID: 8, Instance: 5}, {PID: 9, Instance: -1}},
			id(second): {{PID: 99, Instance: -1}},
		},
		instances: []inventory.MIGInstance{
			{ID: 3, Placement: inventory.MIGPlacement{Start: 0, Size: 2}},
			{ID: 5, Placement: inventory.MIGPlacement{Start: 2, Size: 2}},
		},
	}
	admin := owns("")
	admin.Devices[0].AdminAccess = true
	for name, c := range map[string]struct {
		record *journal.Record
		want   []string
	}{
		"whole GPU":               {owns(""), []string{"process 7 on gpu-1", "process 8 on gpu-1", "process 9 on gpu-1"}},
		"partition":               {owns("2g.20gb:2+2"), []string{"process 8 on gpu-12g.20gb:2+2"}},
		"partition that is gone":  {owns("1g.10gb:6+1"), nil},
		"partition of odd name":   {owns("odd"), []string{"process 7 on gpu-1odd", "process 8 on gpu-1odd", "process 9 on gpu-1odd"}},
		"admin access":            {admin, nil},
		"another board, same PCI": {&journal.Record{Devices: []journal.Device{{PCI: first, GPUUUID: "GPU-other"}}}, nil},
	} {
		got := usage.Users{Hardware: h}.Use(t.Context(), c.record)
		if diff := cmp.Diff(c.want, got.By); diff != "" || got.Err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, got.Err, diff)
		}
	}
}

func TestUseWhenTheDriverDoesNotAnswer(t *testing.T) {
	for _, c := range []struct {
		err   error
		known bool
	}{
		{inventory.ErrNoDriver, true},
		{inventory.ErrLost, true},
		{inventory.ErrNoSuchGPU, true},
		{inventory.ErrNotSupported, true},
		{inventory.ErrHung, false},
		{inventory.ErrRestart, false},
		{errors.New("no permission"), false},
	} {
		got := usage.Users{Hardware: hardware{err: fmt.Errorf("call: %w", c.err)}}.Use(t.Context(), owns(""))
		if len(got.By) > 0 || (got.Err == nil) != c.known {
			t.Errorf("%v: %+v", c.err, got)
		}
	}
}

// A record that was made from a device's name has no board's UUID, and no board has none.
func TestUseOfABoardThatTheRecordDoesNotName(t *testing.T) {
	nameless := owns("")
	nameless.Devices[0].GPUUUID = ""
	for err, known := range map[error]bool{inventory.ErrNoSuchGPU: false, inventory.ErrNoDriver: true} {
		got := usage.Users{Hardware: hardware{err: fmt.Errorf("call: %w", err)}}.Use(t.Context(), nameless)
		if len(got.By) > 0 || (got.Err == nil) != known {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

// numbers are two GPUs with the minors of character devices that every machine has: 1:3 is null,
// 1:5 is zero.
type numbers struct{ err error }

func (n numbers) GPUMinor(_ context.Context, at pci.Address) (int, error) {
	switch at {
	case first:
		return 3, n.err
	case second:
		return 5, n.err
	}
	return 0, fs.ErrNotExist
}

func (n numbers) Majors(context.Context) (map[string]uint32, error) {
	return map[string]uint32{"nvidia": 1}, n.err
}

// process makes the files of a process below a /proc: what it has open and when it began.
func process(t *testing.T, root string, pid int, after time.Duration, open ...string) {
	t.Helper()
	dir := filepath.Join(root, strconv.Itoa(pid))
	if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, target := range open {
		if err := os.Symlink(target, filepath.Join(dir, "fd", strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	stat := fmt.Sprintf("%d (a) b) c) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 1 1\n", pid, after.Milliseconds()/10)
	for name, text := range map[string]string{"stat": stat, "comm": "train\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenDevices(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Stat("/dev/null", &st); err != nil || unix.Major(st.Rdev) != 1 || unix.Minor(st.Rdev) != 3 {
		t.Fatalf("/dev/null is %d, %v", st.Rdev, err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "stat"), []byte("cpu 1\nbtime 1700000000\nprocesses 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const before, after = 50 * time.Second, 150 * time.Second // of the record, after the boot
	process(t, root, 10, after, "/dev/null", root)
	process(t, root, 11, after, "/dev/null", "/dev/zero") // watches the whole node
	process(t, root, 12, before, "/dev/null")             // was there before the claim
	process(t, root, 13, after, "/dev/zero")              // on the other GPU
	process(t, root, 14, after, "/dev/null")              // this process
	process(t, root, 15, after)
	p := usage.Proc{Root: root, Numbers: numbers{}, Self: 14}
	open := func(r *journal.Record) []string {
		t.Helper()
		got, err := p.Open(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if diff := cmp.Diff([]string{"process 10 (train)"}, open(owns(""))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	both := owns("")
	both.Devices = append(both.Devices, journal.Device{PCI: second})
	if diff := cmp.Diff([]string{"process 10 (train)", "process 11 (train)", "process 13 (train)"}, open(both)); diff != "" {
		t.Errorf("both GPUs (-want +got):\n%s", diff)
	}
	old := owns("")
	old.Created = time.Time{} // made anew of what was left: nobody knows since when
	if diff := cmp.Diff([]string{"process 10 (train)", "process 12 (train)"}, open(old)); diff != "" {
		t.Errorf("without a time (-want +got):\n%s", diff)
	}
	gone := &journal.Record{Devices: []journal.Device{{PCI: pci.Address{Bus: 9}}}}
	if got := append(open(gone), open(owns("1g.10gb:0+1"))...); len(got) > 0 {
		t.Errorf("a GPU that is gone, and a partition, are used by %v", got)
	}
	use := usage.Users{Hardware: hardware{}, Openers: p}.Use(t.Context(), owns(""))
	if diff := cmp.Diff([]string{"process 10 (train)"}, use.By); diff != "" || use.Err != nil {
		t.Errorf("together: %v (-want +got):\n%s", use.Err, diff)
	}
	p.Numbers = numbers{err: errors.New("no permission")}
	if _, err := p.Open(t.Context(), owns("")); err == nil {
		t.Error("no error without the numbers of nodes")
	}
	p.Numbers, p.Root = numbers{}, t.TempDir()
	if _, err := p.Open(t.Context(), owns("")); err == nil {
		t.Error("no error without the time of the boot")
	}
}
