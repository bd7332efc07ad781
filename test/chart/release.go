package chart

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// Cluster acts on the releases of one namespace of one cluster.
type Cluster struct {
	config *action.Configuration
	// wait bounds each action; 0 means not to wait for the objects to be ready or gone.
	wait time.Duration
}

// Connect prepares actions on a namespace through a kubeconfig file; empty means the usual
// places. With wait over 0 actions end when their objects are ready, or fail after that time.
func Connect(kubeconfig, namespace string, wait time.Duration, log slog.Handler) (*Cluster, error) {
	flags := genericclioptions.NewConfigFlags(true)
	flags.Namespace = &namespace
	if kubeconfig != "" {
		flags.KubeConfig = &kubeconfig
	}
	config := action.NewConfiguration(action.ConfigurationSetLogger(log))
	if err := config.Init(flags, namespace, "secrets"); err != nil {
		return nil, fmt.Errorf("connect to the cluster of kubeconfig %q: %w", kubeconfig, err)
	}
	// What a hook that fails has to say. Init has it say nothing.
	config.SetHookOutputFunc(func(_, _, _ string) io.Writer { return os.Stderr })
	return &Cluster{config: config, wait: wait}, nil
}

func (c *Cluster) strategy() kube.WaitStrategy {
	if c.wait > 0 {
		return kube.StatusWatcherStrategy
	}
	return kube.HookOnlyStrategy
}

// timeout is the time for hooks where nothing is waited for.
func (c *Cluster) timeout() time.Duration { return max(c.wait, time.Minute) }

// Install makes a new release, and its namespace if that is missing, and returns the chart's
// notes.
func (c *Cluster) Install(ctx context.Context, r Release) (string, error) {
	loaded, merged, err := r.load()
	if err != nil {
		return "", err
	}
	install := action.NewInstall(c.config)
	install.ReleaseName, install.Namespace, install.CreateNamespace = r.Name, r.Namespace, true
	install.WaitStrategy, install.Timeout = c.strategy(), c.timeout()
	// Who takes over an object takes over its fields.
	install.TakeOwnership, install.ForceConflicts = r.TakeOwnership, r.TakeOwnership
	released, err := install.RunWithContext(ctx, loaded, merged)
	if err != nil {
		return "", fmt.Errorf("install release %s: %w", r.Name, err)
	}
	done, err := narrow(released)
	if err != nil {
		return "", err
	}
	return done.Info.Notes, nil
}

// Upgrade changes an existing release to the given chart and values and returns the notes.
// Values of the former revision are kept with KeepValues alone.
func (c *Cluster) Upgrade(ctx context.Context, r Release) (string, error) {
	loaded, merged, err := r.load()
	if err != nil {
		return "", err
	}
	upgrade := action.NewUpgrade(c.config)
	upgrade.Namespace, upgrade.ResetValues, upgrade.ResetThenReuseValues = r.Namespace, !r.KeepValues, r.KeepValues
	upgrade.WaitStrategy, upgrade.Timeout = c.strategy(), c.timeout()
	upgrade.TakeOwnership, upgrade.ForceConflicts = r.TakeOwnership, r.TakeOwnership
	released, err := upgrade.RunWithContext(ctx, r.Name, loaded, merged)
	if err != nil {
		return "", fmt.Errorf("upgrade release %s: %w", r.Name, err)
	}
	done, err := narrow(released)
	if err != nil {
		return "", err
	}
	return done.Info.Notes, nil
}

// Uninstall removes a release and its objects, as helm does by default: the pods of the
// DaemonSet end after it. One that is not there is no error.
func (c *Cluster) Uninstall(name string) error {
	uninstall := action.NewUninstall(c.config)
	uninstall.IgnoreNotFound = true
	uninstall.WaitStrategy, uninstall.Timeout = c.strategy(), c.timeout()
	if _, err := uninstall.Run(name); err != nil {
		return fmt.Errorf("uninstall release %s: %w", name, err)
	}
	return nil
}

// Restore makes the last revision of a release the deployed one again, as helm rollback with its
// number does: after an uninstall that a hook refused, Helm takes the release for half gone and
// would not upgrade it.
func (c *Cluster) Restore(name string) error {
	last, err := c.config.Releases.Last(name)
	if err != nil {
		return fmt.Errorf("release %s: %w", name, err)
	}
	done, err := narrow(last)
	if err != nil {
		return err
	}
	rollback := action.NewRollback(c.config)
	rollback.Version = done.Version
	rollback.WaitStrategy, rollback.Timeout = c.strategy(), c.timeout()
	if err := rollback.Run(name); err != nil {
		return fmt.Errorf("restore revision %d of release %s: %w", done.Version, name, err)
	}
	return nil
}
