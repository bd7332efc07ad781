// Command gpu-mps-daemon has the MPS control daemons of a node running, in a pod of its own so
// that their clients outlive the node plugin. Its first process only keeps a supervisor running,
// which takes orders from the plugin over a socket.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
	"github.com/gpu-dra/driver/pkg/sharing/mps/control"
	"github.com/gpu-dra/driver/pkg/sharing/mps/reaper"
	"github.com/gpu-dra/driver/pkg/sharing/mps/supervisor"
)

// version is set by the linker.
var version = "v0.0.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := command(version).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// checkTime bounds the question of a probe.
const checkTime = 2 * time.Second

func command(version string) *cobra.Command {
	s := defaultSettings()
	root := &cobra.Command{
		Use:           "gpu-mps-daemon",
		Short:         "Has the MPS control daemons of a node running",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.reap(cmd.Context(), cmd.Flags())
		},
	}
	s.addFlags(root.PersistentFlags())
	root.AddCommand(
		&cobra.Command{
			Use: "supervise", Short: "Take orders; started by the first process", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return s.supervise(cmd.Context()) },
		},
		&cobra.Command{
			Use: "check", Short: "Ask the supervisor of this node whether it answers", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return s.check(cmd.Context()) },
		},
		&cobra.Command{
			Use: control.EnterCommand, Short: "Become a program of a daemon; started by the supervisor", DisableFlagParsing: true, Hidden: true,
			RunE: func(_ *cobra.Command, args []string) error { return control.Enter(args) },
		},
	)
	return root
}

// settings are those of all sub-commands.
type settings struct {
	dir        string
	driverRoot string
	shmSize    string
	bootID     string
}

func defaultSettings() *settings {
	return &settings{
		dir: "/var/lib/kubelet/plugins/gpu.nvidia.com/" + mps.DirName, driverRoot: "/driver-root",
		shmSize: "50%", bootID: "/proc/sys/kernel/random/boot_id",
	}
}

func (s *settings) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.dir, "dir", s.dir, "Directory of sockets and daemons: \"mps\" in the plugin's data directory. Same path inside and outside.")
	fs.StringVar(&s.driverRoot, "driver-root-mount", s.driverRoot, "Where this process sees the directory tree of the GPU driver.")
	fs.StringVar(&s.shmSize, "shm-size", s.shmSize, "Bound of the shared memory of each daemon and its clients, as tmpfs has it: \"50%\" of the machine's memory, \"8g\".")
	fs.StringVar(&s.bootID, "boot-id", s.bootID, "File with the kernel's id of this boot.")
}

// validate names the flag, its value and what is allowed.
func (s *settings) validate() error {
	for flag, path := range map[string]string{"dir": s.dir, "driver-root-mount": s.driverRoot, "boot-id": s.bootID} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s: %q is not allowed: use an absolute path", flag, path)
		}
	}
	if socket := s.layout().Socket(); len(socket) > mps.MaxSocketPath {
		return fmt.Errorf("--dir: %q is not allowed: the socket %s has %d bytes and a unix socket's path at most %d", s.dir, socket, len(socket), mps.MaxSocketPath)
	}
	if !mps.ValidShmSize(s.shmSize) {
		return fmt.Errorf("--shm-size: %q is not allowed: use 1%% to 100%%, or a number with k, m or g", s.shmSize)
	}
	return nil
}

func (s *settings) layout() mps.Layout { return mps.Layout(s.dir) }

// reap is the first process of the container.
func (s *settings) reap(ctx context.Context, flags *pflag.FlagSet) error {
	if err := s.validate(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	line := []string{self, "supervise"}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			line = append(line, "--"+f.Name+"="+f.Value.String())
		}
	})
	klog.FromContext(ctx).Info("Starting", "version", version, "command", line)
	return reaper.Run(ctx, reaper.Config{Lock: s.layout().LifeLock(), Supervisor: line})
}

// supervise adopts what runs, then serves.
func (s *settings) supervise(ctx context.Context) error {
	if err := s.validate(); err != nil {
		return err
	}
	boot, err := os.ReadFile(s.bootID)
	if err != nil {
		return fmt.Errorf("--boot-id: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	// In turn before the socket is there, so that no order comes before what runs is known.
	life, end := context.WithCancel(ctx)
	defer end()
	sup := supervisor.New(life, supervisor.Config{
		Layout: s.layout(), Boot: strings.TrimSpace(string(boot)),
		Programs: &control.Control{Layout: s.layout(), DriverRoot: s.driverRoot, Self: self, ShmSize: s.shmSize, Env: passedOn(os.Environ())},
	})
	defer sup.Wait()
	if err := sup.Adopt(life); err != nil {
		return err
	}
	listener, err := supervisor.Listen(life, s.layout())
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error { defer end(); return sup.Serve(life, listener) })
	return group.Wait()
}

// passedOn are the variables of this process that programs of the driver get: of the others some
// would set limits that nobody asked for.
func passedOn(environ []string) []string {
	var out []string
	for _, v := range environ {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "GPUSIM_") || name == "HOME" || name == "LANG" {
			out = append(out, v)
		}
	}
	return out
}

// check is for probes.
func (s *settings) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	client := mps.Client{Layout: s.layout(), Patience: time.Nanosecond}
	list, err := client.List(ctx)
	var broken []error
	for _, d := range list {
		if d.Served && !d.Ready {
			broken = append(broken, fmt.Errorf("MPS control daemon %s: %s", d.Name, d.Message))
		}
	}
	return errors.Join(append(broken, err)...)
}
