//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/command"
	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/e2e/rig"
)

// Versions of the driver's image: the one under test, and the same source under an older name.
const (
	version      = "v0.1.0-e2e"
	olderVersion = "v0.0.9"
)

// Nodes of the cluster, by the machine that each simulates. Every test finds here the topology
// that it is about, so that one installation serves them all.
const (
	islands = iota // two NVLink islands of four
	bridges        // four bridged pairs
	cube           // hybrid cube mesh: not all-to-all
	mixed          // five boards of four products
)

// suite is what all tests share.
type suite struct {
	*rig.Rig

	client kubernetes.Interface
	values rig.Values
}

// shared is set by TestMain before any test runs.
var shared *suite

// pluginName is how kubectl calls its plugin.
const pluginName = "kubectl-gpu"

func TestMain(m *testing.M) {
	// Commands of the documentation are run by a shell, which finds this program under that name.
	if filepath.Base(os.Args[0]) == pluginName {
		if err := command.New(version, command.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}).ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	s, err := newSuite()
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "e2e: cluster and driver are ready after %s\n", time.Since(began).Round(time.Second))
	shared = s
	code := m.Run()
	if os.Getenv("E2E_KEEP") != "" {
		fmt.Fprintf(os.Stderr, "e2e: kept: export KUBECONFIG=%s\n", s.Nodes.Kubeconfig())
		return code
	}
	if err := s.Down(context.WithoutCancel(ctx), true); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return code
}

// newSuite reads the settings: those of the cluster (CLUSTER_NAME and so on), E2E_OUT for what
// is built and E2E_MACHINES for the simulated machines.
func newSuite() (*suite, error) {
	config, err := cluster.FromEnvironment(os.Getenv)
	if err != nil {
		return nil, err
	}
	config.Name = cmp.Or(os.Getenv("CLUSTER_NAME"), "e2e")
	if config.Features != cluster.FeaturesAllDRA {
		// NVIDIA's exporter of metrics reads slices in this version.
		config.RuntimeConfig = cmp.Or(config.RuntimeConfig, "resource.k8s.io/v1beta1=true")
	}
	repository, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	out := cmp.Or(os.Getenv("E2E_OUT"), filepath.Join(repository, "dist", "e2e"))
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(out, "e2e.log"))
	if err != nil {
		return nil, err
	}
	r, err := rig.New(rig.Config{
		Repository: repository, Out: out, Cluster: config,
		Presets:  []string{islands: "two-islands", bridges: "a100-pcie-8", cube: "dgx1-v100", mixed: "mixed"},
		Machines: cmp.Or(os.Getenv("E2E_MACHINES"), "/var/tmp/gpus-"+config.Name),
		Log:      io.MultiWriter(log, os.Stderr),
	})
	if err != nil {
		return nil, err
	}
	// A rescan a second finds faults soon; -v=4 shows each claim's steps in what is dumped.
	return &suite{Rig: r, values: rig.Values{"rescanInterval": "1s", "health.holdDown": "2s", "health.interval": "1s", "rbac.claimStatus": "true", "logVerbosity": "4"}}, nil
}

// start brings everything to where a test can begin, from whatever an earlier run left.
func (s *suite) start(ctx context.Context) error {
	if err := s.BuildTools(ctx); err != nil {
		return err
	}
	if err := s.Up(ctx); err != nil {
		return err
	}
	client, err := s.Client()
	if err != nil {
		return err
	}
	s.client = client
	archive, err := s.BuildImage(ctx, version)
	if err != nil {
		return err
	}
	if err := s.ClusterCommand(ctx, "load", archive); err != nil {
		return err
	}
	if err := s.tidy(ctx); err != nil {
		return err
	}
	if err := s.Uninstall(ctx, client); err != nil {
		return err
	}
	// Without the faults, and of another build, that an earlier run may have left.
	for i := range s.Presets {
		if _, err := s.NewMachine(ctx, i); err != nil {
			return err
		}
	}
	return s.Install(ctx, version, s.values)
}

// testLabel marks the namespaces of tests.
const testLabel = "e2e.example.com/test"

// tidy ends what a killed run left in the cluster: pods first, while a plugin can still undo
// their claims.
func (s *suite) tidy(ctx context.Context) error {
	namespaces, err := s.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: testLabel})
	if err != nil {
		return err
	}
	var errs []error
	for _, ns := range namespaces.Items {
		errs = append(errs, s.empty(ctx, ns.Name))
	}
	return errors.Join(errs...)
}

// empty ends all pods and claims of a namespace, then lets the namespace go.
func (s *suite) empty(ctx context.Context, namespace string) error {
	if err := s.deletePods(ctx, namespace); err != nil {
		return err
	}
	claims := s.client.ResourceV1().ResourceClaims(namespace)
	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	err := rig.Wait(ctx, time.Minute, "the claims of "+namespace+" are gone", func(ctx context.Context) (string, error) {
		list, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d claims are left", len(list.Items)), nil
	})
	if err != nil {
		return err
	}
	err = s.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// deletePods ends all pods of a namespace and waits for them.
func (s *suite) deletePods(ctx context.Context, namespace string) error {
	pods := s.client.CoreV1().Pods(namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	return rig.Wait(ctx, time.Minute, "the pods of "+namespace+" are gone", func(ctx context.Context) (string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d pods are left", len(list.Items)), nil
	})
}

// ready waits until the plugin runs on every node and every GPU is published, whole or in parts.
func (s *suite) ready(ctx context.Context) error {
	return rig.Wait(ctx, time.Minute, "the driver serves every node", func(ctx context.Context) (string, error) {
		set, err := s.daemonSet(ctx)
		if err != nil {
			return "", err
		}
		if missing := rig.RolledOut(set, len(s.Presets)); missing != "" {
			return missing, nil
		}
		devices, err := rig.Devices(ctx, s.client)
		if err != nil {
			return "", err
		}
		gpus := map[string]bool{}
		for _, d := range devices {
			gpus[cmp.Or(d.Parent, d.UUID)] = true
		}
		want := 0
		for i := range s.Presets {
			n, err := s.Machine(ctx, i)
			if err != nil {
				return "", err
			}
			want += n.GPUCount()
		}
		if len(gpus) != want {
			return fmt.Sprintf("%d of %d GPUs are published", len(gpus), want), nil
		}
		return "", nil
	})
}

func (s *suite) daemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	return s.client.AppsV1().DaemonSets(rig.Namespace).Get(ctx, rig.DaemonSet, metav1.GetOptions{})
}
