package walkthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-dra/driver/test/runc"

	"github.com/gpu-dra/driver/pkg/linkcost"
)

// baseSpec is the name of the CDI spec with what all containers get. It belongs to the driver,
// not to a claim, and stays.
const baseSpec = driverName + "-driver.json"

// showDevices waits for the slices and shows what is in them.
func (w *walk) showDevices(ctx context.Context) error {
	slices, err := w.published(ctx)
	if err != nil {
		return err
	}
	w.gpus = fromSlices(slices)
	if len(w.gpus) != w.node.GPUCount() {
		return fmt.Errorf("the slices have %d GPUs, the node has %d", len(w.gpus), w.node.GPUCount())
	}
	w.block(table(w.gpus, w.held))
	w.found("%d GPUs in %d NVLink domains, as many as the machine has", len(w.gpus), len(domains(w.gpus)))
	w.before, err = pathsBelow(w.cdiDir(), w.dataDir())
	return err
}

// published waits for the node's slices.
func (w *walk) published(ctx context.Context) (found []resourceapi.ResourceSlice, err error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const again = 50 * time.Millisecond
	err = wait.PollUntilContextCancel(limited, again, true, func(ctx context.Context) (bool, error) {
		list, err := w.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		found = list.Items
		// A slice without devices is what a node without a driver has.
		return complete(found, w.options.Preset) && len(fromSlices(found)) > 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the node's ResourceSlices: %w", errors.Join(context.Cause(ctx), err))
	}
	return found, nil
}

func (w *walk) takePair(ctx context.Context) error {
	text, err := manifest("pair")
	if err != nil {
		return err
	}
	if w.pair, err = w.schedule(ctx, text); err != nil {
		return err
	}
	if err := w.prepare(ctx, w.pair); err != nil {
		return err
	}
	w.found("claim pair has %s and is prepared", numbers(w.pair.gpus))
	return nil
}

func (w *walk) allocateFour(ctx context.Context) error {
	text, err := manifest("four")
	if err != nil {
		return err
	}
	w.block(text)
	const count = 4
	naive := byNumber(w.gpus, w.held, count)
	if w.four, err = w.schedule(ctx, text); err != nil {
		return err
	}
	w.say("the scheduler's allocator decided:")
	w.block(table(w.gpus, w.held))
	w.block(fmt.Sprintf("\nlink cost, the sum over all pairs: %d inside an NVLink domain, %d across\n  the first four free GPUs by number  %s  %2d\n  the four of the claim               %s  %2d",
		linkcost.Inside, linkcost.Across, numbers(naive), linkCost(naive), numbers(w.four.gpus), linkCost(w.four.gpus)))
	if got := domains(w.four.gpus); len(w.four.gpus) != count || len(got) != 1 || linkCost(w.four.gpus) != pairs(count) {
		return fmt.Errorf("claim four has %d GPUs in the NVLink domains %q, want %d in one", len(w.four.gpus), got, count)
	}
	w.found("claim four has %s, all in NVLink domain %s", numbers(w.four.gpus), short(w.four.gpus[0].domain))
	return nil
}

// pairs is how many pairs n things have.
func pairs(n int) int { return n * (n - 1) / 2 }

func (w *walk) prepareFour(ctx context.Context) error {
	began := time.Now()
	if err := w.prepare(ctx, w.four); err != nil {
		return err
	}
	took := time.Since(began)
	path, spec, err := specFile(w.cdiDir(), "*-claim_"+string(w.four.claim.UID)+".json")
	if err != nil {
		return err
	}
	text, err := inYAML(spec)
	if err != nil {
		return err
	}
	w.say(strings.TrimPrefix(path, w.dir+"/"))
	w.block(text)
	_, base, err := specFile(w.cdiDir(), baseSpec)
	if err != nil {
		return err
	}
	w.say(baseSpec + ", shared by all claims, adds:")
	w.block(summary(combined(base)))
	w.found("prepared in %.1f ms over %s", float64(took.Microseconds())/1000, w.kubelet.Instances(driverName)[0].Endpoint)
	return nil
}

// container runs a program in a container with the job's devices, or without any where j is nil.
func (w *walk) container(ctx context.Context, j *job, args ...string) (runc.Result, error) {
	rootfs, err := os.MkdirTemp(w.dir, "rootfs-")
	if err != nil {
		return runc.Result{}, fmt.Errorf("make root file system: %w", err)
	}
	if err := runc.NewRootfs(ctx, rootfs); err != nil {
		return runc.Result{}, err
	}
	c := runc.Container{Rootfs: rootfs, Args: args}
	if j != nil {
		c.Devices, c.SpecDirs = j.cdi, []string{w.cdiDir()}
	}
	return runc.Run(ctx, c)
}

func (w *walk) lookInside(ctx context.Context) error {
	list, err := w.smi(ctx, "-L")
	if err != nil {
		return err
	}
	seen, err := uuids(list)
	if err != nil {
		return err
	}
	if err := sameGPUs(w.four.gpus, seen); err != nil {
		return err
	}
	topology, err := w.smi(ctx, "topo", "-m")
	if err != nil {
		return err
	}
	if err := allByNVLink(topology, len(w.four.gpus)); err != nil {
		return err
	}
	w.found("by their UUIDs exactly the %d GPUs of the claim, each pair joined by NVLink", len(seen))
	return nil
}

// smi runs nvidia-smi in a container with claim four and shows it.
func (w *walk) smi(ctx context.Context, args ...string) (string, error) {
	result, err := w.container(ctx, w.four, append([]string{"nvidia-smi"}, args...)...)
	if err != nil {
		return "", err
	}
	w.say("$ nvidia-smi " + strings.Join(args, " "))
	w.block(matrix(result.Stdout))
	if result.ExitCode != 0 {
		return "", fmt.Errorf("nvidia-smi %s in the container: exit code %d: %s", strings.Join(args, " "), result.ExitCode, strings.TrimSpace(result.Stderr+result.Stdout))
	}
	return result.Stdout, nil
}

func (w *walk) lookWithoutClaim(ctx context.Context) error {
	const script = `ls -d /dev/nvidia* 2>/dev/null; command -v nvidia-smi; mknod /tmp/gpu c 195 0 2>/dev/null && echo made a node for a GPU; true`
	result, err := w.container(ctx, nil, "sh", "-c", script)
	if err != nil {
		return err
	}
	if seen := strings.TrimSpace(result.Stdout); seen != "" || result.ExitCode != 0 {
		return fmt.Errorf("a container without a claim sees %q (exit code %d)", seen, result.ExitCode)
	}
	w.found("no device node, no driver file, and it cannot make a node for itself")
	return nil
}

func (w *walk) giveBack(ctx context.Context) error {
	for _, j := range []*job{w.four, w.pair} {
		if err := w.release(ctx, j); err != nil {
			return err
		}
		w.found("claim %s is unprepared, its GPUs are free", j.claim.Name)
	}
	now, err := pathsBelow(w.cdiDir(), w.dataDir())
	if err != nil {
		return err
	}
	if extra := added(w.before, now, string(w.pair.claim.UID), string(w.four.claim.UID)); len(extra) > 0 {
		return fmt.Errorf("after unprepare these files are left: %q", extra)
	}
	w.found("no CDI spec, claim record, holder or metadata is left: all as before the first claim, but for %s and a lock for each GPU", baseSpec)
	if err := w.plugin.stop(patience); err != nil {
		return err
	}
	if now, err = pathsBelow(w.path("kubelet")); err != nil {
		return err
	}
	if open := sockets(now); len(open) > 0 {
		return fmt.Errorf("the plugin ended and left the sockets %q", open)
	}
	w.found("SIGTERM ended the plugin with exit code 0, its sockets are gone")
	return nil
}
