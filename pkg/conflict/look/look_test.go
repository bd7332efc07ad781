package look_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/conflict/look"
)

// nodes has one node.
type nodes struct {
	node *corev1.Node
	err  error
	gets int
}

func (n *nodes) Get(_ context.Context, name string, o metav1.GetOptions) (*corev1.Node, error) {
	n.gets++
	if name != "node-1" || o.ResourceVersion != "0" {
		return nil, errors.New("another question")
	}
	return n.node, n.err
}

func newNode(labels map[string]string, amounts map[corev1.ResourceName]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: labels}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{}}}
	for name, amount := range amounts {
		n.Status.Allocatable[name] = resource.MustParse(amount)
	}
	return n
}

func TestNode(t *testing.T) {
	api := &nodes{node: newNode(nil, map[corev1.ResourceName]string{"cpu": "8", "hugepages-2Mi": "0", "nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb": "0"})}
	l := &look.Looker{Nodes: api, Node: "node-1", Registry: t.TempDir(), Driver: "gpu.nvidia.com"}
	want := map[string]string{"cpu": "8", "nvidia.com/gpu": "8"}
	// What is known stays while the API server is away, and it is asked at each fourth look.
	for i, row := range []struct {
		err  error
		gets int
	}{{nil, 1}, {nil, 1}, {nil, 1}, {nil, 1}, {errors.New("away"), 2}, {errors.New("away"), 2}, {nil, 2}, {nil, 2}, {nil, 3}} {
		api.err = row.err
		seen := l.Look(t.Context())
		if seen.Node == nil || api.gets != row.gets {
			t.Fatalf("look %d: %+v after %d questions", i, seen, api.gets)
		}
		if diff := cmp.Diff(want, seen.Node.Allocatable); diff != "" {
			t.Errorf("look %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestNodeThatIsNotKnown(t *testing.T) {
	api := &nodes{node: newNode(nil, nil), err: errors.New("away")}
	l := &look.Looker{Nodes: api, Node: "node-1", Registry: t.TempDir(), Driver: "gpu.nvidia.com"}
	for range 3 {
		if seen := l.Look(t.Context()); seen.Node != nil || seen.MIGManager != "" || len(seen.Registered) != 0 {
			t.Errorf("%+v", seen)
		}
	}
	// It is asked until it was known once.
	api.err = nil
	for range 2 {
		if seen := l.Look(t.Context()); seen.Node == nil || api.gets != 4 {
			t.Errorf("%+v after %d questions", seen, api.gets)
		}
	}
}

func TestMIGManager(t *testing.T) {
	for name, row := range map[string]struct {
		labels, annotations map[string]string
		found               bool
	}{
		"none":               {},
		"a layout is chosen": {labels: map[string]string{"nvidia.com/mig.config": "all-1g.10gb"}},
		"deployed":           {labels: map[string]string{"nvidia.com/gpu.deploy.mig-manager": "true"}, found: true},
		"switched off":       {labels: map[string]string{"nvidia.com/gpu.deploy.mig-manager": "false"}},
		"at work":            {labels: map[string]string{"nvidia.com/mig.config.state": "success"}, found: true},
		"our own state": {
			labels:      map[string]string{"nvidia.com/mig.config.state": "success"},
			annotations: map[string]string{"gpu.nvidia.com/mig.config.state": "success"},
		},
	} {
		n := newNode(row.labels, nil)
		n.Annotations = row.annotations
		l := &look.Looker{Nodes: &nodes{node: n}, Node: "node-1", Registry: t.TempDir(), Driver: "gpu.nvidia.com"}
		if sign := l.Look(t.Context()).MIGManager; (sign != "") != row.found {
			t.Errorf("%s: %q", name, sign)
		}
	}
}

func TestRegistered(t *testing.T) {
	for name, row := range map[string]struct {
		driver string
		alone  bool
		// live are sockets that somebody listens on, dead are files alone.
		live, dead []string
		want       map[string]string
	}{
		"nothing":                 {driver: "gpu.nvidia.com"},
		"other instances of ours": {driver: "gpu.nvidia.com", live: []string{"gpu.nvidia.com-1111-reg.sock", "gpu.nvidia.com-2222-reg.sock"}},
		"another driver":          {driver: "gpu.nvidia.com", live: []string{"gpu.nvidia.com-reg.sock"}, want: map[string]string{"gpu.nvidia.com": "gpu.nvidia.com-reg.sock"}},
		"one that was killed":     {driver: "gpu.nvidia.com", dead: []string{"gpu.nvidia.com-reg.sock"}},
		"our own":                 {driver: "gpu.nvidia.com", alone: true, live: []string{"gpu.nvidia.com-reg.sock"}},
		"compute domains":         {driver: "gpu.nvidia.com", live: []string{"compute-domain.nvidia.com-reg.sock"}},
		"theirs beside ours":      {driver: "gpu2.nvidia.com", live: []string{"gpu.nvidia.com-reg.sock"}, want: map[string]string{"gpu.nvidia.com": "gpu.nvidia.com-reg.sock"}},
		"theirs with a pod's UID": {driver: "gpu2.nvidia.com", live: []string{"gpu.nvidia.com-1111-reg.sock"}, want: map[string]string{"gpu.nvidia.com": "gpu.nvidia.com-1111-reg.sock"}},
		"one beside ours by hand": {driver: "gpu2.nvidia.com", live: []string{"gpu2.nvidia.com-reg.sock"}, want: map[string]string{"gpu2.nvidia.com": "gpu2.nvidia.com-reg.sock"}},
		"our own of another name": {driver: "gpu2.nvidia.com", alone: true, live: []string{"gpu2.nvidia.com-reg.sock"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "r") // paths of sockets must be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			for _, file := range append(append([]string(nil), row.live...), row.dead...) {
				listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				listener.(*net.UnixListener).SetUnlinkOnClose(false)
				t.Cleanup(func() { _ = listener.Close() })
			}
			for _, file := range row.dead {
				// Another file of the name, on which nobody listens.
				path := filepath.Join(dir, file)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l := &look.Looker{Nodes: &nodes{node: newNode(nil, nil)}, Node: "node-1", Registry: dir, Driver: row.driver, Alone: row.alone}
			got := map[string]string{}
			for driver, socket := range l.Look(t.Context()).Registered {
				got[driver] = filepath.Base(socket)
			}
			if row.want == nil {
				row.want = map[string]string{}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("registered (-want +got):\n%s", diff)
			}
		})
	}
}

// A plugin that hangs accepts nothing, and is there.
func TestOneThatHangs(t *testing.T) {
	dir, err := os.MkdirTemp("", "r")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "gpu.nvidia.com-reg.sock")
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := errors.Join(syscall.Bind(socket, &syscall.SockaddrUnix{Name: path}), syscall.Listen(socket, 0)); err != nil {
		t.Fatal(err)
	}
	l := &look.Looker{Nodes: &nodes{node: newNode(nil, nil)}, Node: "node-1", Registry: dir, Driver: "gpu.nvidia.com"}
	// Soon no more connections can wait.
	for i := range 4 {
		if found := l.Look(t.Context()).Registered; len(found) != 1 {
			t.Errorf("look %d: %v", i, found)
		}
	}
}
