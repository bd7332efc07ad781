package rig

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// releaseLimit bounds an installation or an upgrade. A node's slices come about a second after
// its pod is ready.
const releaseLimit = 2 * time.Minute

// Values are the chart's values, by dotted path.
type Values map[string]string

// values are those that every release of the rig needs, and the given ones over them. The chart
// mounts the driver root read-only, as a real driver needs no more; the simulated one keeps its
// state there, so it is told of a writable mount of the same folder.
func (r *Rig) values(version string, more Values) []string {
	const writable = "/simulated-driver"
	all := Values{
		"image.repository": Image,
		"image.tag":        version,
		"image.pullPolicy": "Never",
		"nvidiaDriverRoot": filepath.Join(r.Mount(), "driver"),
		"devRoot":          filepath.Join(r.Mount(), "driver", "dev"),
		"procRoot":         filepath.Join(r.Mount(), "proc"),
		"sysRoot":          filepath.Join(r.Mount(), "sys"),
		// The tests end their pods themselves, and the one node has no time for another pod.
		"uninstallCheck.mode": "none",

		"kubeletPlugin.containers.gpus.env[0].name":    "GPUSIM_ROOT",
		"kubeletPlugin.containers.gpus.env[0].value":   writable,
		"kubeletPlugin.extraVolumes[0].name":           "simulated-driver",
		"kubeletPlugin.extraVolumes[0].hostPath.path":  filepath.Join(r.Mount(), "driver"),
		"kubeletPlugin.extraVolumeMounts[0].name":      "simulated-driver",
		"kubeletPlugin.extraVolumeMounts[0].mountPath": writable,
	}
	maps.Copy(all, more)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "--set", name+"="+all[name])
	}
	return args
}

func (r *Rig) chart(ctx context.Context, action string, args ...string) error {
	return r.chartWithin(ctx, releaseLimit, action, args...)
}

func (r *Rig) chartWithin(ctx context.Context, limit time.Duration, action string, args ...string) error {
	line := append([]string{action, Release}, args...)
	line = append(line, "--namespace", Namespace, "--kubeconfig", r.Nodes.Kubeconfig(), "--wait", limit.String())
	return r.run(exec.CommandContext(ctx, r.tool("chartctl"), line...))
}

func (r *Rig) chartDir() string {
	return filepath.Join(r.Repository, "deployments/helm/gpu-dra-driver")
}

// Install installs the chart and returns when the plugin is ready on every node.
func (r *Rig) Install(ctx context.Context, version string, more Values) error {
	return r.chart(ctx, "install", append([]string{r.chartDir()}, r.values(version, more)...)...)
}

// InstallOver is Install, and makes objects that are there, and are another release's, this one's.
func (r *Rig) InstallOver(ctx context.Context, version string, more Values) error {
	return r.chart(ctx, "install", append([]string{r.chartDir(), "--take-ownership"}, r.values(version, more)...)...)
}

// Upgrade changes the release to that version and those values, and returns when the new
// plugin is ready on every node.
func (r *Rig) Upgrade(ctx context.Context, version string, more Values) error {
	return r.chart(ctx, "upgrade", append([]string{r.chartDir()}, r.values(version, more)...)...)
}

// Change is Upgrade and does not wait: the pods of MPS control daemons are not updated by themselves,
// and Helm would wait for them.
func (r *Rig) Change(ctx context.Context, version string, more Values) error {
	return r.chartWithin(ctx, 0, "upgrade", append([]string{r.chartDir()}, r.values(version, more)...)...)
}

// Restore deploys the release's last revision again, after an uninstall that was refused.
func (r *Rig) Restore(ctx context.Context) error { return r.chart(ctx, "restore") }

// Uninstall removes the release and waits until its pods are gone.
func (r *Rig) Uninstall(ctx context.Context, client kubernetes.Interface) error {
	if err := r.chart(ctx, "uninstall"); err != nil {
		return err
	}
	return Wait(ctx, releaseLimit, "the plugin's pods are gone", func(ctx context.Context) (string, error) {
		pods, err := client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d pods are left", len(pods.Items)), nil
	})
}

// RolledOut says what is missing until the plugin of the present template is ready on every
// node and no other is left; "" means nothing.
func RolledOut(set *appsv1.DaemonSet, nodes int) string {
	s := set.Status
	switch want := int32(nodes); {
	case s.ObservedGeneration < set.Generation:
		return "the DaemonSet controller has not seen the change"
	case s.DesiredNumberScheduled != want:
		return fmt.Sprintf("%d of %d nodes are to have a plugin", s.DesiredNumberScheduled, want)
	case s.UpdatedNumberScheduled != want || s.NumberAvailable != want:
		return fmt.Sprintf("%d of %d plugins are updated, %d available", s.UpdatedNumberScheduled, want, s.NumberAvailable)
	default:
		return ""
	}
}

// Wait asks about every tenth of a second until ask finds nothing missing, and fails with what
// was missing last when the limit is over. What ask says describes the state; an error ends the
// wait.
func Wait(ctx context.Context, limit time.Duration, what string, ask func(context.Context) (missing string, err error)) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	began := time.Now()
	for last := "not asked yet"; ; {
		missing, err := ask(bounded)
		switch {
		case err == nil && missing == "":
			return nil
		case err != nil && bounded.Err() == nil:
			return fmt.Errorf("wait until %s: %w", what, err)
		case err == nil:
			last = missing
		}
		select {
		case <-bounded.Done():
			return fmt.Errorf("waited %s until %s: %s: %w", time.Since(began).Round(time.Second), what, last, bounded.Err())
		case <-ticker.C:
		}
	}
}
