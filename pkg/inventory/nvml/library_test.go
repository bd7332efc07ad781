package nvml_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/session"
	"github.com/gpu-dra/driver/pkg/inventory/sysfs"
	"github.com/gpu-dra/driver/test/gpusim"
)

// onRoot makes a scanner that has to find the library itself.
func onRoot(n *gpusim.Node) machine {
	l := nvml.New(nvml.Options{Root: n.DriverRoot()})
	return machine{Node: n, library: l, scanner: inventory.NewScanner(l, sysfs.New(n.SysRoot(), n.ProcRoot()))}
}

func TestADriverThatIsInstalledLater(t *testing.T) {
	if !isolated(t) {
		return
	}
	m := onRoot(gpusim.New(t, "t4-4"))
	do(t, m.RemoveDriver())
	got := m.scan(t)
	var missing *session.NotFoundError
	if got.Driver.Present || !errors.As(got.Driver.Err, &missing) || !strings.Contains(got.Driver.Missing, "usr/lib64") {
		t.Errorf("driver is %+v", got.Driver)
	}
	if len(got.Unusable) != 4 {
		t.Errorf("unusable are %+v", got.Unusable)
	}
	do(t, m.RestoreDriver())
	m.wantAll(t, m.scan(t))
	if err := m.library.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A new driver under a process that is bound to the old one: the open session would answer on,
// but containers get the new files, so the process has to go, and says so.
func TestADriverThatIsReplaced(t *testing.T) {
	if !isolated(t) {
		return
	}
	m := onRoot(gpusim.New(t, "t4-4"))
	m.wantAll(t, m.scan(t))
	path, err := session.Locate(m.DriverRoot())
	do(t, err)
	data, err := os.ReadFile(path)
	do(t, err)
	do(t, os.WriteFile(path+".new", data, 0o755))
	do(t, os.Rename(path+".new", path))

	got := m.scan(t)
	var replaced *session.ReplacedError
	if got.Driver.Present || !errors.Is(got.Driver.Err, inventory.ErrRestart) || !errors.As(got.Driver.Err, &replaced) {
		t.Errorf("driver is %+v", got.Driver)
	}
	if !strings.Contains(got.Driver.Missing, "start it anew") {
		t.Errorf("missing is %q", got.Driver.Missing)
	}
}
