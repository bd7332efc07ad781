package walkthrough

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/scheduler"
)

// DefaultPreset is the machine on which the main job shows best: two NVLink islands of four GPUs.
const DefaultPreset = "two-islands"

// Options of a walk.
type Options struct {
	// Preset is the simulated machine, see package nodefile; [DefaultPreset] by default.
	Preset string
	// Keep leaves the work directory there.
	Keep bool
	// Install lets missing Debian packages be installed.
	Install bool
	// Out is where the walk is shown.
	Out io.Writer
	// Colour uses a terminal's colours.
	Colour bool
}

// walk is one walk under way.
type walk struct {
	*screen
	options Options
	// dir is the work directory; everything that the walk makes lies in it.
	dir string
	// programs is the directory of the plugin and the CDI hook.
	programs string

	node      *gpusim.Node
	client    kubernetes.Interface
	scheduler *scheduler.Scheduler
	kubelet   *kubelet.Kubelet
	plugin    *process

	gpus []gpu
	// held names the claim that has a GPU, by device name.
	held map[string]string
	// before are the files of the driver before the first claim.
	before []string
	pair   *job
	four   *job

	undo []func() error
}

// Run shows everything and checks it. It needs root, Debian and Go; it makes one directory and removes it at
// the end, also after a failure and at the end of ctx. Its errors say what to do; many are a
// [*Problem].
func Run(ctx context.Context, o Options) (err error) {
	if o.Preset == "" {
		o.Preset = DefaultPreset
	}
	if os.Geteuid() != 0 {
		return &Problem{Err: errors.New("only root can make device nodes and containers"), Advice: "run this with sudo"}
	}
	w := &walk{screen: newScreen(o.Out, o.Colour), options: o, held: map[string]string{}}
	defer func() { err = w.tidyUp(ctx, err) }()
	if err := w.setUp(ctx); err != nil {
		return w.explain(ctx, err)
	}
	alive, cancel := w.plugin.while(ctx)
	defer cancel()
	if err := w.steps(alive); err != nil {
		return w.explain(alive, err)
	}
	return nil
}

// steps are the parts of the walk in which the plugin runs.
func (w *walk) steps(ctx context.Context) error {
	all := []struct {
		title string
		do    func(context.Context) error
	}{
		{"The node's devices, read from the ResourceSlices that the plugin published", w.showDevices},
		{"A first claim takes two GPUs of one NVLink domain", w.takePair},
		{"A claim for four GPUs that share one NVLink domain", w.allocateFour},
		{"The kubelet asks the plugin to prepare the claim; the plugin writes a CDI spec", w.prepareFour},
		{"A container with the claim, run by runc with the CDI edits injected", w.lookInside},
		{"A container without a claim, for comparison", w.lookWithoutClaim},
		{"Unprepare, and the end of the plugin: nothing is left", w.giveBack},
	}
	for i, step := range all {
		w.heading(i+1, len(all), step.title)
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// setUp brings the node and everything around it to life.
func (w *walk) setUp(ctx context.Context) error {
	file, err := nodefile.Preset(w.options.Preset)
	if err != nil {
		return err
	}
	w.say(w.paint(bold, "The main job of the driver on a simulated node: "+w.options.Preset))
	if err := provideTools(ctx, w.screen, w.options.Install); err != nil {
		return err
	}
	source, err := sourceTree(ctx)
	if err != nil {
		return err
	}
	if w.programs, err = build(ctx, w.screen, source); err != nil {
		return err
	}
	if w.dir, err = workDir([]string{os.TempDir(), "/var/tmp", "/var/lib"}, usableBase); err != nil {
		return err
	}
	w.say("everything lies in " + w.dir)
	if err := w.during("make the simulated node", func() error {
		w.node, err = gpusim.Create(ctx, w.path("node"), file)
		return err
	}); err != nil {
		return err
	}
	if err := w.startControlPlane(ctx); err != nil {
		return err
	}
	return w.startPlugin(ctx)
}

// path is a path below the work directory.
func (w *walk) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

// later notes what undoes something; the newest is undone first.
func (w *walk) later(undo func() error) { w.undo = append(w.undo, undo) }

// tidyUp undoes everything and shows the end.
func (w *walk) tidyUp(ctx context.Context, failed error) error {
	errs := []error{failed}
	for i := len(w.undo) - 1; i >= 0; i-- {
		errs = append(errs, w.undo[i]())
	}
	switch {
	case w.dir == "":
	case w.options.Keep:
		w.say("kept: " + w.dir)
	default:
		errs = append(errs, os.RemoveAll(w.dir))
		w.say("removed " + w.dir)
	}
	err := errors.Join(errs...)
	if err == nil && ctx.Err() == nil {
		w.ending()
	}
	return err
}

// ending tells how long it took and what to try next.
func (w *walk) ending() {
	w.write("\n")
	w.say(w.paint(bold, fmt.Sprintf("Done: everything above was checked, in %.1f s.", w.elapsed().Seconds())))
	inspect := "go run -trimpath ./demo/cmd/demo --preset hgx-h100-8 --keep    another machine, files kept to look at"
	if w.options.Keep {
		inspect = "go run ./test/gpusim/cmd/gpusim inspect " + w.path("node") + "    the simulated node"
	}
	w.block("What to try next:\n  make demo-cluster    the same on a real Kubernetes, the driver installed from its chart\n  " + inspect +
		"\n  go run ./test/gpusim/cmd/gpusim presets    the machines that can be simulated")
}

// explain adds to a failure what the plugin said last, unless the viewer ended the walk.
func (w *walk) explain(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		return err
	}
	if cause != nil {
		err = errors.Join(cause, err)
	}
	var problem *Problem
	if w.plugin == nil || errors.As(err, &problem) {
		return err
	}
	return &Problem{
		Err: err, Component: "the plugin's log", Log: lastLinesOf(w.plugin.log),
		Advice: "run it again with --keep and read " + filepath.Base(w.plugin.log) + " in the directory that it names",
	}
}

// patience bounds what should take a second or two.
const patience = 30 * time.Second

// startControlPlane starts the API server, scheduler and kubelet.
func (w *walk) startControlPlane(ctx context.Context) error {
	api, err := kubeapi.Start(kubeapi.Options{}) //nolint:contextcheck // it serves until it is closed, also after ctx
	if err != nil {
		return err
	}
	w.later(api.Close)
	if w.client, err = api.Client("demo"); err != nil {
		return err
	}
	if err := w.loadScene(api); err != nil {
		return err
	}
	if err := api.WriteKubeconfig(w.path("kubeconfig"), "gpu-kubelet-plugin"); err != nil {
		return err
	}
	if err := os.MkdirAll(w.path("kubelet", "registry"), 0o755); err != nil {
		return fmt.Errorf("make registry: %w", err)
	}
	w.scheduler = scheduler.New(w.client)
	// Ends in its Stop, not before: what was prepared is unprepared through it.
	w.kubelet, err = kubelet.Start(context.WithoutCancel(ctx), kubelet.Options{
		NodeName: w.options.Preset, RegistryDir: w.path("kubelet", "registry"), Client: w.client,
	})
	if err != nil {
		return err
	}
	w.later(func() error { w.kubelet.Stop(); return nil })
	w.found("API server at %s and kubelet, both small stand-ins", api.URL())
	return nil
}

// startPlugin starts the real plugin and waits until it is registered.
func (w *walk) startPlugin(ctx context.Context) (err error) {
	w.plugin, err = startProcess(ctx, w.path("plugin.log"), filepath.Join(w.programs, "gpu-kubelet-plugin"),
		"--node-name="+w.options.Preset, "--kubeconfig="+w.path("kubeconfig"),
		"--driver-root="+w.node.DriverRoot(), "--driver-root-mount="+w.node.DriverRoot(),
		"--dev-root="+filepath.Join(w.node.DevRoot(), "dev"), "--dev-root-mount="+filepath.Join(w.node.DevRoot(), "dev"),
		"--proc-root-mount="+w.node.ProcRoot(), "--sys-root-mount="+w.node.SysRoot(),
		"--kubelet-plugins-dir="+w.path("kubelet", "plugins"), "--kubelet-registry-dir="+w.path("kubelet", "registry"),
		"--cdi-dir="+w.cdiDir(), "--cdi-hook="+filepath.Join(w.programs, "nvidia-cdi-hook"),
		"--http-address=", "--grpc-health-address=")
	if err != nil {
		return err
	}
	w.later(func() error {
		// Step 7 has ended it where the walk came so far, and has judged how it ended.
		_ = w.plugin.stop(patience)
		return nil
	})
	ctx, cancel := w.plugin.while(ctx)
	defer cancel()
	ctx, end := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the plugin did not register within %s", patience))
	defer end()
	if err := w.kubelet.WaitForDriver(ctx, driverName); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	w.found("plugin started (process %d) and registered with the kubelet at %s", w.plugin.cmd.Process.Pid, w.kubelet.Instances(driverName)[0].RegistrationSocket)
	return nil
}

func (w *walk) cdiDir() string { return w.path("cdi") }

// dataDir is where the plugin keeps its state.
func (w *walk) dataDir() string { return w.path("kubelet", "plugins", driverName) }
