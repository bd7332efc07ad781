package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/pkg/linkcost"
	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

const (
	// namespace is where the demonstration's pods run. It stays, to be looked at.
	namespace = "demo"
	// version is the tag of the image that is built.
	version = "demo"
	// patience bounds the start of a pod and the end of one.
	patience = time.Minute
)

// Options say where the demonstration works.
type Options struct {
	// Repository is the root of the repository.
	Repository string
	// Getenv reads the settings of the cluster, CLUSTER_*; its name is "demo" unless given.
	Getenv func(string) string
	// Out is what the viewer reads.
	Out io.Writer
}

// demo is one run.
type demo struct {
	*rig.Rig
	*teller

	client kubernetes.Interface
}

// newDemo builds nothing and starts nothing.
func newDemo(o Options) (*demo, error) {
	repository, err := filepath.Abs(o.Repository)
	if err != nil {
		return nil, fmt.Errorf("repository: %w", err)
	}
	config, err := cluster.FromEnvironment(o.Getenv)
	if err != nil {
		return nil, err
	}
	config.Name = cmp.Or(o.Getenv("CLUSTER_NAME"), "demo")
	out := filepath.Join(repository, "dist", "demo-cluster")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("folder for what is built: %w", err)
	}
	file, err := os.Create(filepath.Join(out, "log"))
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	log := &lastLine{to: file}
	r, err := rig.New(rig.Config{
		Repository: repository, Out: out, Cluster: config, Log: log,
		Presets: []string{"two-islands"}, Machines: "/var/tmp/gpus-" + config.Name,
	})
	if err != nil {
		return nil, err
	}
	return &demo{Rig: r, teller: newTeller(o.Out, log)}, nil
}

// Run shows the main job and leaves the cluster running, for the viewer to try more.
func Run(ctx context.Context, o Options) error {
	d, err := newDemo(o)
	if err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{d.cluster, d.driver, d.devices, d.fragment, d.four} {
		switch err := part(ctx); {
		case err == nil:
		case errors.Is(err, errNoRoom):
			return err
		default:
			return fmt.Errorf("%w\nThe tools' output is in %s, the cluster's logs in %s",
				err, filepath.Join(d.Out, "log"), d.Cluster.LogDir())
		}
	}
	d.next()
	return nil
}

// Down leaves the machine as it was before Run. What was built stays.
func Down(ctx context.Context, o Options) error {
	d, err := newDemo(o)
	if err != nil {
		return err
	}
	if err := d.step("The command of the cluster is built", func() error { return d.BuildTools(ctx) }); err != nil {
		return err
	}
	err = d.step("The cluster, its data and the simulated node are gone", func() error { return d.Down(ctx, true) })
	if err == nil {
		d.line("What was built is kept in %s and %s.", d.Cluster.Bin, d.Out)
		d.line("In a shell that was set up for the cluster: unset KUBECONFIG")
		d.line("Next: make demo-cluster starts it again, in less than a minute; docs/install.md is for a cluster of your own.")
	}
	return err
}

// cluster starts Kubernetes, with one node that has eight GPUs.
func (d *demo) cluster(ctx context.Context) error {
	d.line("A real Kubernetes on this machine, one node with eight simulated GPUs: two NVLink islands of four.")
	if err := d.step("The tools are built", func() error { return d.BuildTools(ctx) }); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(d.Cluster.Bin, "kubelet")); errors.Is(err, os.ErrNotExist) {
		d.line("Kubernetes, etcd, containerd and runc are built from source now. On two cores that takes about 13 minutes, once.")
	}
	if err := d.step("The cluster is up", func() error { return d.Up(ctx) }); err != nil {
		return err
	}
	client, err := d.Client()
	d.client = client
	return err
}

// driver installs the driver from its image and its chart.
func (d *demo) driver(ctx context.Context) error {
	if err := d.room(ctx); err != nil {
		return err
	}
	if err := d.clear(ctx); err != nil {
		return err
	}
	var archive string
	if err := d.step("The driver's image is built and loaded", func() error {
		var err error
		if archive, err = d.BuildImage(ctx, version); err != nil {
			return err
		}
		return d.ClusterCommand(ctx, "load", archive)
	}); err != nil {
		return err
	}
	return d.step("The driver's chart is installed and its plugin is ready", func() error { return d.install(ctx, archive) })
}

// install installs the chart, anew on a new machine unless pods hold GPUs: those must not lose
// their node's driver, so the release is upgraded, which does nothing where nothing changed.
func (d *demo) install(ctx context.Context, archive string) error {
	values, err := imageValues(archive)
	if err != nil {
		return err
	}
	_, held, err := d.held(ctx)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		_, err := d.client.AppsV1().DaemonSets(rig.Namespace).Get(ctx, rig.DaemonSet, metav1.GetOptions{})
		switch {
		case err == nil:
			return d.Upgrade(ctx, version, values)
		case apierrors.IsNotFound(err):
			return d.Install(ctx, version, values)
		default:
			return fmt.Errorf("look for the plugin of a former run: %w", err)
		}
	}
	if err := d.Uninstall(ctx, d.client); err != nil {
		return err
	}
	if _, err := d.NewMachine(ctx, 0); err != nil {
		return err
	}
	return d.Install(ctx, version, values)
}

// clear ends the pods of a former run.
func (d *demo) clear(ctx context.Context) error {
	api := d.client.CoreV1().Namespaces()
	err := api.Delete(ctx, namespace, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the pods of a former run: %w", err)
	}
	return d.step("The pods of a former run have ended", func() error {
		return rig.Wait(ctx, patience, "namespace "+namespace+" is gone", func(ctx context.Context) (string, error) {
			_, err := api.Get(ctx, namespace, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			return "it is there", err
		})
	})
}

// devices shows what the node offers.
func (d *demo) devices(ctx context.Context) error {
	var gpus []rig.GPU
	var held map[string]string
	err := rig.Wait(ctx, patience, "the node's GPUs are published", func(ctx context.Context) (missing string, err error) {
		gpus, held, err = d.held(ctx)
		if len(gpus) == 0 {
			missing = "there are none"
		}
		return missing, err
	})
	if err != nil {
		return err
	}
	d.line("The node offers %d GPUs, in the order in which they are given away:", len(gpus))
	d.quote(rig.Table(gpus, held))
	_, err = d.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	return err
}

// run makes the objects of a manifest of demo/specs and returns its pod, running, with its GPUs.
func (d *demo) run(ctx context.Context, name string) (*corev1.Pod, []rig.GPU, error) {
	objects, err := d.Spec(name)
	if err != nil {
		return nil, nil, err
	}
	objects.Into(namespace)
	var pod *corev1.Pod
	err = d.step("kubectl apply -f demo/specs/"+name+".yaml, and its pod runs", func() error {
		if err := objects.Create(ctx, d.client); err != nil {
			return err
		}
		want := objects.Pods()[0].Name
		return rig.Wait(ctx, patience, "pod "+want+" runs", func(ctx context.Context) (string, error) {
			pod, err = d.client.CoreV1().Pods(namespace).Get(ctx, want, metav1.GetOptions{})
			if err != nil || pod.Status.Phase == corev1.PodRunning {
				return "", err
			}
			return state(pod), nil
		})
	})
	if err != nil {
		return nil, nil, err
	}
	gpus, err := rig.Given(ctx, d.client, pod)
	return pod, gpus, err
}

// fragment takes two GPUs, so that four by number would cross from one island to the other.
func (d *demo) fragment(ctx context.Context) error {
	_, gpus, err := d.run(ctx, "count-2")
	if err != nil {
		return err
	}
	d.line("Two GPUs of one island are taken: %s and %s.", gpus[0].Device, gpus[1].Device)
	return nil
}

// four runs the pod that this is all about, and checks what it sees.
func (d *demo) four(ctx context.Context) error {
	pod, gpus, err := d.run(ctx, "four-on-one-nvlink-domain")
	if err != nil {
		return err
	}
	domains := rig.Domains(gpus)
	if len(gpus) != 4 || len(domains) != 1 || domains[0] == "" {
		return fmt.Errorf("the claim was given %d GPUs in the NVLink domains %q, not four in one", len(gpus), domains)
	}
	var seen []string
	var said []byte
	err = rig.Wait(ctx, patience, "the container has listed its GPUs", func(ctx context.Context) (string, error) {
		said, err = d.client.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return "", err
		}
		seen, err = rig.ParseList(string(said))
		if len(seen) < len(gpus) {
			return string(said), nil
		}
		return "", err
	})
	if err != nil {
		return err
	}
	d.line("Inside the container, nvidia-smi -L:")
	d.quote(string(said))
	slices.Sort(seen)
	if !slices.Equal(seen, rig.UUIDs(gpus)) {
		return fmt.Errorf("the container sees %q, its claim was given %q", seen, rig.UUIDs(gpus))
	}
	return d.topology(ctx, pod, gpus)
}

// topology shows that each GPU reaches each other one over NVLink, and who holds what.
func (d *demo) topology(ctx context.Context, pod *corev1.Pod, gpus []rig.GPU) error {
	kubectl, err := d.Nodes.Command(ctx, "kubectl", "exec", "--namespace", namespace, pod.Name, "--", "nvidia-smi", "topo", "-m")
	if err != nil {
		return err
	}
	said, err := kubectl.Output()
	if err != nil {
		return fmt.Errorf("nvidia-smi topo -m: %w", err)
	}
	links, err := rig.ParseTopology(string(said))
	if err != nil {
		return err
	}
	if fault := links.OverNVLink(); fault != "" {
		return errors.New(fault)
	}
	d.line("Inside the container, nvidia-smi topo -m:")
	d.quote(matrix(string(said), len(gpus)))

	all, held, err := d.held(ctx)
	if err != nil {
		return err
	}
	d.line("The four share one NVLink domain, on the island that nobody had touched:")
	d.quote(rig.Table(all, held))
	naive := firstFree(all, held, namespace+"/"+pod.Name, len(gpus))
	d.line("Link cost, %d inside an island and %d across: %d for the first four free ones by number, %d for these.",
		linkcost.Inside, linkcost.Across, cost(naive), cost(gpus))
	return nil
}

// next ends the demonstration with what the viewer can do now.
func (d *demo) next() {
	d.line("Done. The cluster is up, so try more:")
	d.show(hints(d.Nodes.Kubeconfig(), d.Cluster.Bin))
}

// hints are commands for the viewer's shell. The cluster's kubectl comes before the machine's,
// which may be too old for it.
func hints(kubeconfig, bin string) string {
	return fmt.Sprintf(`
    export KUBECONFIG=%s PATH=%s:$PATH
    kubectl get resourceslices
    kubectl --namespace %s get pods,resourceclaims
    kubectl --namespace %s exec four-on-one-nvlink-domain -- nvidia-smi
    kubectl --namespace %s delete pods --all    # frees their GPUs
    sed 's#ubuntu:24.04#%s#' demo/specs/one-gpu.yaml | kubectl apply -f -    # any of demo/specs
    kubectl wait --for=condition=Ready pod/one-gpu --timeout=1m; kubectl logs one-gpu
    make demo-cluster-down       # leaves the machine as it was

`, kubeconfig, bin, namespace, namespace, namespace, cluster.WorkloadImage)
}
