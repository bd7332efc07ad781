package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/lock"
	"github.com/gpu-dra/driver/pkg/pci"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	// Every sequence of the model writes to a real disk. More of them: -rapid.checks=1000.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// board is a full GPU, or with a partition a device that takes steps.
type board struct {
	bus       uint8
	uuid      string
	minor     int
	partition string
}

func (b board) Name() string {
	if b.partition != "" {
		return fmt.Sprintf("gpu-%d-%s", b.bus, b.partition)
	}
	return fmt.Sprintf("gpu-%d", b.bus)
}

func (b board) Kind() device.Kind {
	if b.partition != "" {
		return device.KindMIG
	}
	return device.KindGPU
}

func (b board) Identity() device.Identity {
	return device.Identity{PCI: pci.Address{Bus: b.bus}, GPUUUID: b.uuid, Partition: b.partition}
}

func (b board) Publish(device.Vocabulary) (resourceapi.Device, []device.Omission) {
	return resourceapi.Device{}, nil
}

// Overlaps: a full GPU overlaps with all of its board, a partition with the whole and itself.
func (b board) Overlaps(o device.Identity) bool {
	return b.bus == o.PCI.Bus && (b.partition == "" || o.Partition == "" || b.partition == o.Partition)
}

func (b board) Minor() int { return b.minor }

// gpu is the board with that number, as it is from the start.
func gpu(n int) board { return board{bus: uint8(n), uuid: fmt.Sprintf("GPU-%d", n), minor: n} }

func part(n int, partition string) board {
	b := gpu(n)
	b.partition = partition
	return b
}

func claimOf(uid types.UID) claims.Ref {
	return claims.Ref{Namespace: "team", Name: "claim-" + string(uid), UID: uid}
}

// plan asks for whole devices.
func plan(uid types.UID, boards ...board) claims.Plan {
	p := claims.Plan{Claim: claimOf(uid)}
	for i, b := range boards {
		p.Devices = append(p.Devices, claims.Device{Request: fmt.Sprintf("r%d", i), Pool: "node", Device: b})
	}
	return p
}

// hardware is what steps change. A step's key is its params' "where".
type hardware struct {
	mu    sync.Mutex
	made  map[string]int // where -> output
	count int
	// fault, when set, decides about each call: "do carve gpu-1-a".
	fault func(call string) error
	calls []string
}

type stepParams struct {
	Where string `json:"where"`
}

// carver is the executor of one kind of step.
type carver struct {
	kind string
	hw   *hardware
}

func (c carver) call(verb string, params jsontext.Value) (string, error) {
	var p stepParams
	if err := json.Unmarshal(params, &p); err != nil {
		return "", err
	}
	where := c.kind + " " + p.Where
	c.hw.calls = append(c.hw.calls, verb+" "+where)
	if c.hw.fault != nil {
		return where, c.hw.fault(verb + " " + where)
	}
	return where, nil
}

func (c carver) Do(_ context.Context, params jsontext.Value) (jsontext.Value, error) {
	c.hw.mu.Lock()
	defer c.hw.mu.Unlock()
	where, err := c.call("do", params)
	if err != nil {
		return nil, err
	}
	if _, there := c.hw.made[where]; !there {
		c.hw.count++
		c.hw.made[where] = c.hw.count
	}
	return jsontext.Value(fmt.Sprint(c.hw.made[where])), nil
}

func (c carver) Undo(_ context.Context, params, _ jsontext.Value) error {
	c.hw.mu.Lock()
	defer c.hw.mu.Unlock()
	where, err := c.call("undo", params)
	if err != nil {
		return err
	}
	delete(c.hw.made, where)
	return nil
}

// partHandler prepares partitions in two steps.
type partHandler struct{}

func (partHandler) Steps(d claims.Device) ([]journal.Step, error) {
	params := jsontext.Value(fmt.Sprintf(`{"where":%q}`, d.Device.Name()))
	return []journal.Step{{Kind: "carve", Params: params}, {Kind: "wire", Params: params}}, nil
}

func (partHandler) Edits(d claims.Device, steps []journal.Step) (cdi.Edits, error) {
	edits, err := GPUHandler{}.Edits(d, nil)
	for _, s := range steps {
		edits.Env = append(edits.Env, fmt.Sprintf("%s_%s=%s", s.Kind, d.Device.Identity().Partition, s.Output))
	}
	return edits, err
}

// node is a machine: its directories and hardware outlive the engines.
type node struct {
	dir   string
	boot  int
	hw    *hardware
	nodes map[string]bool // device nodes that exist, by minor: "nvidia3"
	base  error
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), hw: &hardware{made: map[string]int{}}, nodes: map[string]bool{}}
	for i := range 40 {
		n.nodes[fmt.Sprintf("nvidia%d", i)] = true
	}
	return n
}

// Ensure is the base spec.
func (n *node) Ensure(context.Context) error { return n.base }

// Majors is the kernel's list.
func (n *node) Majors(context.Context) (map[string]uint32, error) {
	return map[string]uint32{"nvidia": 195}, nil
}

func (n *node) stat(path string) (cdi.NodeStat, error) {
	name := filepath.Base(path)
	if !n.nodes[name] {
		return cdi.NodeStat{}, fs.ErrNotExist
	}
	var minor uint32
	_, err := fmt.Sscanf(name, "nvidia%d", &minor)
	return cdi.NodeStat{Mode: fs.ModeDevice | fs.ModeCharDevice, Major: 195, Minor: minor}, err
}

func (n *node) store(t testing.TB) *journal.Store {
	t.Helper()
	s, err := journal.Open(filepath.Join(n.dir, "journal"))
	must(t, err)
	return s
}

func (n *node) specs(t testing.TB) *cdi.Dir {
	t.Helper()
	d, err := cdi.Open(filepath.Join(n.dir, "cdi"), "gpu.nvidia.com",
		&cdi.Host{Dev: cdi.Root{Host: "/dev", Container: "/dev"}, Majors: n, Stat: n.stat})
	must(t, err)
	return d
}

// start runs an engine as a process of its own would; change adapts its configuration.
func (n *node) start(t testing.TB, change ...func(*Config)) *Engine {
	t.Helper()
	locks, err := lock.Open(filepath.Join(n.dir, "locks"), lock.Options{})
	must(t, err)
	config := Config{
		Journal: n.store(t), Locks: locks, Specs: n.specs(t), Base: n,
		HoldersDir: filepath.Join(n.dir, "holders"), BootID: fmt.Sprintf("boot-%d", n.boot),
		Handlers:   map[device.Kind]Handler{device.KindGPU: GPUHandler{}, device.KindMIG: partHandler{}},
		Executors:  map[string]Executor{"carve": carver{"carve", n.hw}, "wire": carver{"wire", n.hw}},
		HolderWait: time.Millisecond,
	}
	for _, c := range change {
		c(&config)
	}
	e, err := New(config)
	must(t, err)
	_, err = e.Recover(context.Background())
	must(t, err)
	return e
}

// reboot loses what lives in memory: CDI specs, hardware state, locks.
func (n *node) reboot(t testing.TB) {
	t.Helper()
	n.boot++
	n.hw.made = map[string]int{}
	for _, dir := range []string{"cdi", "locks"} {
		must(t, os.RemoveAll(filepath.Join(n.dir, dir)))
	}
}

// leftovers lists all files below the node's directory, empty directories left out.
func (n *node) leftovers(t testing.TB) []string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(n.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(n.dir, path)
		// The files of GPU locks stay, and the one for a full file system.
		if match, _ := filepath.Match("locks/gpu_*.lock", rel); !match && rel != "locks/overflow.lock" {
			out = append(out, rel)
		}
		return err
	}))
	for where := range n.hw.made {
		out = append(out, "hardware "+where)
	}
	slices.Sort(out)
	return out
}

// clean fails where anything is left of any claim.
func (n *node) clean(t testing.TB) {
	t.Helper()
	if left := n.leftovers(t); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func prepareOK(t testing.TB, e *Engine, p claims.Plan) []Prepared {
	t.Helper()
	prepared, err := e.Prepare(t.Context(), p)
	must(t, err)
	return prepared
}

func unprepareOK(t testing.TB, e *Engine, uid types.UID) {
	t.Helper()
	must(t, e.Unprepare(t.Context(), claims.Ref{UID: uid}))
}

// spec reads the claim's CDI spec, "" where there is none.
func (n *node) spec(t testing.TB, uid types.UID) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.dir, "cdi", "gpu.nvidia.com-claim_"+string(uid)+".json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

// counting counts durable writes.
type counting struct {
	*journal.Store
	mu     sync.Mutex
	writes int
	bytes  int64
}

func (c *counting) Save(r *journal.Record) error {
	err := c.Store.Save(r)
	info, statErr := os.Stat(c.Path(r.UID))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if statErr == nil {
		c.bytes += info.Size()
	}
	return err
}

func (c *counting) Delete(uid types.UID) error {
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	return c.Store.Delete(uid)
}
