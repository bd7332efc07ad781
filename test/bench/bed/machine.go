package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubelet"
)

// Driver is the driver's name.
const Driver = "gpu.nvidia.com"

// Programs are the files of the driver's image that run on a node.
type Programs struct {
	Plugin, Hook string
}

// Machine is a simulated GPU machine that is a node of an API server, with a kubelet.
type Machine struct {
	// Name is that of the node and of its pool.
	Name    string
	Kubelet *kubelet.Kubelet
	// Client is the operator's.
	Client   kubernetes.Interface
	api      API
	sim      *gpusim.Node
	dir      string
	programs Programs
	starts   int
}

// NewMachine makes a machine of a preset below dir, and its node in the API server. The kubelet wipes no
// slices: what a restart writes is what the plugin wants.
func NewMachine(ctx context.Context, api API, programs Programs, dir, name, preset string) (*Machine, error) {
	file, err := nodefile.Preset(preset)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	m := &Machine{Name: name, api: api, dir: filepath.Join(dir, name), programs: programs}
	if m.Client, err = Client(api, Operator); err != nil {
		return nil, err
	}
	for _, d := range []string{m.RegistryDir(), m.CDIDir()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("machine %s: %w", name, err)
		}
	}
	if m.sim, err = gpusim.Create(ctx, filepath.Join(m.dir, "sim"), file); err != nil {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := m.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	m.Kubelet, err = kubelet.Start(context.WithoutCancel(ctx), kubelet.Options{NodeName: name, RegistryDir: m.RegistryDir(), KeepSlices: true})
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	return m, nil
}

// Sim is the machine's hardware.
func (m *Machine) Sim() *gpusim.Node { return m.sim }

// RegistryDir is where plugins register.
func (m *Machine) RegistryDir() string { return filepath.Join(m.dir, "registry") }

// CDIDir is where CDI specs lie.
func (m *Machine) CDIDir() string { return filepath.Join(m.dir, "cdi") }

// DataDir is where the plugin keeps its state.
func (m *Machine) DataDir() string { return filepath.Join(m.dir, "plugins", Driver) }

// Scratch is a directory on the same file system as the plugin's state.
func (m *Machine) Scratch() string { return m.dir }

// Close ends the kubelet. The files stay.
func (m *Machine) Close() { m.Kubelet.Stop() }

// Options of a start of the plugin.
type Options struct {
	// User is whom the API server sees; [Plain] by default.
	User string
	// Program replaces the plugin's file.
	Program string
	// Flags are added to the command line.
	Flags []string
}

// Start starts the plugin with its default settings but for the paths of the machine. It returns
// without waiting for anything.
func (m *Machine) Start(ctx context.Context, o Options) (*Plugin, error) {
	if o.User == "" {
		o.User = Plain
	}
	if o.Program == "" {
		o.Program = m.programs.Plugin
	}
	config := filepath.Join(m.dir, o.User+".kubeconfig")
	if err := writeKubeconfig(m.api, o.User, config); err != nil {
		return nil, err
	}
	m.starts++
	log := filepath.Join(m.dir, fmt.Sprintf("plugin-%d.log", m.starts))
	args := append([]string{
		"--node-name=" + m.Name, "--kubeconfig=" + config,
		"--driver-root=" + m.sim.DriverRoot(), "--driver-root-mount=" + m.sim.DriverRoot(),
		"--dev-root=" + filepath.Join(m.sim.DevRoot(), "dev"), "--dev-root-mount=" + filepath.Join(m.sim.DevRoot(), "dev"),
		"--proc-root-mount=" + m.sim.ProcRoot(), "--sys-root-mount=" + m.sim.SysRoot(),
		"--kubelet-plugins-dir=" + filepath.Dir(m.DataDir()), "--kubelet-registry-dir=" + m.RegistryDir(),
		"--cdi-dir=" + m.CDIDir(), "--cdi-hook=" + m.programs.Hook,
		"--http-address=127.0.0.1:0", "--grpc-health-address=127.0.0.1:0",
	}, o.Flags...)
	p, err := launch(ctx, log, o.Program, args...)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	return &Plugin{machine: m, process: p}, nil
}

// Plugin is a running plugin process.
type Plugin struct {
	machine *Machine
	process *process
}

// Began is when the process was started.
func (p *Plugin) Began() time.Time { return p.process.began }

// Log is the path of the process's log.
func (p *Plugin) Log() string { return p.process.log }

// Memory is what the process has in RAM now.
func (p *Plugin) Memory() (Memory, error) { return readMemory(p.process.cmd.Process.Pid) }

// CPU is the processor time that the process has used so far.
func (p *Plugin) CPU() (time.Duration, error) { return readCPU(p.process.cmd.Process.Pid) }

// IO is what the process has written so far.
func (p *Plugin) IO() (IO, error) { return readIO(p.process.cmd.Process.Pid) }

// Stop ends the plugin as a kubelet would, and waits until it is not registered any more.
func (p *Plugin) Stop(ctx context.Context) error {
	const limit = 45 * time.Second
	if err := p.process.end(limit); err != nil {
		return err
	}
	return p.gone(ctx)
}

// Kill ends the plugin as a crash would, and takes its sockets away as the kubelet's clean-up of a pod would.
func (p *Plugin) Kill(ctx context.Context) error {
	p.process.kill()
	sockets, err := filepath.Glob(filepath.Join(p.machine.RegistryDir(), "*.sock"))
	errs := []error{err}
	for _, s := range sockets {
		errs = append(errs, os.Remove(s))
	}
	return errors.Join(append(errs, p.gone(ctx))...)
}

func (p *Plugin) gone(ctx context.Context) error {
	return p.machine.Kubelet.WaitFor(ctx, Driver, func(all []kubelet.Instance) bool { return len(all) == 0 })
}

// Registered waits until the kubelet can call the plugin.
func (p *Plugin) Registered(ctx context.Context) error {
	ctx, cancel := p.patience(ctx)
	defer cancel()
	if err := p.machine.Kubelet.WaitForDriver(ctx, Driver); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// patience bounds what should take a second or two, and ends early when the process does.
func (p *Plugin) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	const limit = 60 * time.Second
	ctx, timeout := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s: see %s", limit, p.process.log))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-p.process.ended:
			cancel(fmt.Errorf("the plugin ended: see %s", p.process.log))
		case <-stop:
		}
	}()
	return ctx, func() { close(stop); cancel(nil); timeout() }
}

// Published waits until the API server holds slices of the machine with devices, and returns them.
func (p *Plugin) Published(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	ctx, cancel := p.patience(ctx)
	defer cancel()
	slices := p.machine.Client.ResourceV1().ResourceSlices()
	options := p.machine.own()
	for {
		list, err := slices.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("slices of %s: %w", p.machine.Name, errors.Join(context.Cause(ctx), err))
		}
		if complete(list.Items) {
			return list.Items, nil
		}
		watched := options
		watched.ResourceVersion = list.ResourceVersion
		watch, err := slices.Watch(ctx, watched)
		if err != nil {
			return nil, fmt.Errorf("watch slices of %s: %w", p.machine.Name, errors.Join(context.Cause(ctx), err))
		}
		<-watch.ResultChan()
		watch.Stop()
	}
}

// own selects the machine's slices.
func (m *Machine) own() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, m.Name).String()}
}

// Slices are those of the machine that the API server holds now.
func (m *Machine) Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := m.Client.ResourceV1().ResourceSlices().List(ctx, m.own())
	if err != nil {
		return nil, fmt.Errorf("slices of %s: %w", m.Name, err)
	}
	return list.Items, nil
}

// complete tells whether slices are a whole pool with devices.
func complete(slices []resourceapi.ResourceSlice) bool {
	devices := 0
	for i := range slices {
		devices += len(slices[i].Spec.Devices)
	}
	return devices > 0 && int64(len(slices)) == slices[0].Spec.Pool.ResourceSliceCount
}

// Wipe deletes the machine's slices.
func (m *Machine) Wipe(ctx context.Context) error {
	err := m.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, m.own())
	if err != nil {
		return fmt.Errorf("wipe slices of %s: %w", m.Name, err)
	}
	return nil
}
