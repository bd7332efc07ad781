// Package config holds the node plugin's settings: their flags, environment variables,
// defaults and checks. It is for the plugin's wiring and for the generated reference page. It
// must not act on a setting.
package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpu-dra/driver/pkg/conflict"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/sharing/deviceplugin"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

// Root is one directory tree of the node in its two views.
type Root struct {
	// Host is the path as the host and the container runtime see it.
	Host string
	// Container is the path under which this process sees the same tree.
	Container string
}

// The values of MIGDevices.
const (
	// MIGNone leaves GPUs in MIG mode out.
	MIGNone = "none"
	// MIGOnDemand makes partitions when claims get them.
	MIGOnDemand = "on-demand"
	// MIGStatic offers partitions that are there and makes none for claims.
	MIGStatic = "static"
)

// Config is every setting of the node plugin.
type Config struct {
	NodeName   string
	PodUID     string
	DriverName string
	Kubeconfig string
	APIQPS     float32
	APIBurst   int

	DriverRoot Root
	DevRoot    Root
	ProcRoot   string
	SysRoot    string

	KubeletPluginsDir  string
	KubeletRegistryDir string
	CDIDir             string
	CDIHook            string
	LimitHook          string

	HTTPAddress   string
	HealthAddress string

	SliceVocabulary  string
	MIGDevices       string
	MIGForeign       bool
	MIGLayoutFile    string
	MIGLayout        string
	MPS              bool
	ListAttributes   bool
	DeviceMetadata   bool
	RescanInterval   time.Duration
	HolderWait       time.Duration
	ShutdownDeadline time.Duration

	ReconcileInterval time.Duration
	OrphanGrace       time.Duration
	WatchOpenDevices  bool

	// IncludeGPUs and ExcludeGPUs choose the GPUs that are served; see package selection for their form.
	IncludeGPUs string
	ExcludeGPUs string

	// SharedDevices and DevicePluginConfig declare devices as shared; see packages shares and
	// deviceplugin for their form.
	SharedDevices      string
	DevicePluginConfig string

	HealthInterval time.Duration
	HealthHoldDown time.Duration
	HealthTable    string
	HealthEvict    bool
	ClaimStatus    bool
	HealthReset    bool
	// HealthKernelLog is the kernel log to read; empty for none.
	HealthKernelLog string

	// Conflicts says what follows when something else hands out the node's GPUs.
	Conflicts conflict.Policies
}

// Default is the configuration of a node whose driver is installed in the host's own tree.
func Default() *Config {
	return &Config{
		DriverName:         "gpu.nvidia.com",
		APIQPS:             100,
		APIBurst:           200,
		DriverRoot:         Root{Host: "/", Container: "/driver-root"},
		DevRoot:            Root{Host: "/dev", Container: "/dev"},
		ProcRoot:           "/proc",
		SysRoot:            "/sys",
		KubeletPluginsDir:  "/var/lib/kubelet/plugins",
		KubeletRegistryDir: "/var/lib/kubelet/plugins_registry",
		CDIDir:             "/var/run/cdi",
		CDIHook:            "/usr/bin/nvidia-cdi-hook",
		LimitHook:          "/usr/bin/gpu-limit-hook",
		HTTPAddress:        ":8080",
		HealthAddress:      ":51516",
		SliceVocabulary:    string(device.VocabularyFull),
		MIGDevices:         MIGNone,
		MIGForeign:         true,
		DeviceMetadata:     true,
		RescanInterval:     15 * time.Second,
		HolderWait:         15 * time.Second,
		ShutdownDeadline:   40 * time.Second,
		ReconcileInterval:  time.Minute,
		OrphanGrace:        30 * time.Second,
		HealthInterval:     5 * time.Second,
		HealthHoldDown:     30 * time.Second,
		Conflicts:          conflict.RefuseAll(),
	}
}

// AddFlags binds every setting to a flag of the set.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.NodeName, "node-name", c.NodeName, "Name of this node: the pool of its devices has the same name. Required.")
	fs.StringVar(&c.PodUID, "pod-uid", c.PodUID, "UID of this pod. With it two instances can serve side by side, so that an update never leaves the node without a plugin.")
	fs.StringVar(&c.DriverName, "driver-name", c.DriverName, "Name of the DRA driver, which is also the domain of its attributes and taints.")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Kubeconfig file. Empty means the pod's service account.")
	fs.Float32Var(&c.APIQPS, "kube-api-qps", c.APIQPS, "Requests a second to the API server before this client throttles itself.")
	fs.IntVar(&c.APIBurst, "kube-api-burst", c.APIBurst, "Requests to the API server that may come at once.")

	fs.StringVar(&c.DriverRoot.Host, "driver-root", c.DriverRoot.Host, "Directory tree of the GPU driver as the host sees it (\"/\" or \"/run/nvidia/driver\").")
	fs.StringVar(&c.DriverRoot.Container, "driver-root-mount", c.DriverRoot.Container, "Where this process sees --driver-root.")
	fs.StringVar(&c.DevRoot.Host, "dev-root", c.DevRoot.Host, "Directory of the GPU device nodes as the host sees it.")
	fs.StringVar(&c.DevRoot.Container, "dev-root-mount", c.DevRoot.Container, "Where this process sees --dev-root.")
	fs.StringVar(&c.ProcRoot, "proc-root-mount", c.ProcRoot, "Where this process sees the host's /proc.")
	fs.StringVar(&c.SysRoot, "sys-root-mount", c.SysRoot, "Where this process sees the host's /sys.")

	fs.StringVar(&c.KubeletPluginsDir, "kubelet-plugins-dir", c.KubeletPluginsDir, "The kubelet's plugins directory; state and sockets live in a sub-directory named after the driver. Same path inside and outside.")
	fs.StringVar(&c.KubeletRegistryDir, "kubelet-registry-dir", c.KubeletRegistryDir, "Directory in which the kubelet looks for plugins. Same path inside and outside.")
	fs.StringVar(&c.CDIDir, "cdi-dir", c.CDIDir, "Directory for CDI specs; the container runtime must read it.")
	fs.StringVar(&c.CDIHook, "cdi-hook", c.CDIHook, "The nvidia-cdi-hook binary; it is copied to the plugin's directory on the host, where the runtime runs it.")
	fs.StringVar(&c.LimitHook, "limit-hook", c.LimitHook, "The gpu-limit-hook binary, for shares with enforcement driver; it is copied like --cdi-hook.")

	fs.StringVar(&c.HTTPAddress, "http-address", c.HTTPAddress, "Address of /metrics, /healthz and /readyz. Empty switches them off.")
	fs.StringVar(&c.HealthAddress, "grpc-health-address", c.HealthAddress, "Address of the gRPC health service (services \"\", \"liveness\" and \"readiness\"). Empty switches it off.")

	fs.StringVar(&c.IncludeGPUs, "include-gpus", c.IncludeGPUs, "GPUs that are served: a list of entries in YAML or JSON, as the chart's value gpus.include. A node that no entry is for serves all of its GPUs.")
	fs.StringVar(&c.ExcludeGPUs, "exclude-gpus", c.ExcludeGPUs, "GPUs that are left to others, in the same form. They are neither published nor watched nor changed.")
	fs.StringVar(&c.SliceVocabulary, "slice-vocabulary", c.SliceVocabulary, "How much is published of each device: \"full\" or \"minimal\".")
	fs.StringVar(&c.MIGDevices, "mig-devices", c.MIGDevices, "Partitions of GPUs: \"none\" leaves GPUs in MIG mode out; \"static\" offers those that are there and makes none for claims; \"on-demand\" offers every partition that a GPU can have and makes it when a claim gets it, and offers those that somebody else made as they are.")
	fs.BoolVar(&c.MIGForeign, "mig-foreign-devices", c.MIGForeign, "Offer partitions that somebody else made. Without it they are left alone all the same, and what overlaps them is not offered.")
	fs.StringVar(&c.MIGLayoutFile, "mig-layout-file", c.MIGLayoutFile, "File of declared MIG layouts in the format of mig-parted. With it the node's GPUs are laid out by the configuration that the node label nvidia.com/mig.config names, or else --mig-layout. Empty switches it off.")
	fs.StringVar(&c.MIGLayout, "mig-layout", c.MIGLayout, "Configuration of --mig-layout-file for nodes without the label nvidia.com/mig.config. Empty means none.")
	fs.BoolVar(&c.MPS, "mps", c.MPS, "Share devices by MPS where claims ask for it. Needs the MPS control daemons' supervisor, gpu-mps-daemon, on this node.")
	fs.StringVar(&c.SharedDevices, "shared-devices", c.SharedDevices, "Devices that several claims share: a list of declarations in YAML or JSON, as the chart's value sharing.devices. Needs the cluster's feature DRAConsumableCapacity.")
	fs.StringVar(&c.DevicePluginConfig, "device-plugin-config", c.DevicePluginConfig, "The text of a configuration file of NVIDIA's device plugin (version v1), whose sharing part declares shared devices behind those of --shared-devices.")
	fs.BoolVar(&c.ListAttributes, "list-attributes", c.ListAttributes, "Publish list-valued attributes (nvlinkCliques, numaNode as a list). Needs the cluster's feature gate DRAListTypeAttributes; without it the API server refuses the slices.")
	fs.BoolVar(&c.DeviceMetadata, "device-metadata", c.DeviceMetadata, "Give containers a file with their devices' attributes (KEP-5304).")
	fs.DurationVar(&c.RescanInterval, "rescan-interval", c.RescanInterval, "Time between two looks at the hardware.")
	fs.DurationVar(&c.HolderWait, "holder-wait", c.HolderWait, "How long a prepare waits for a device whose former claim is still being torn down. Under the kubelet's 45 s.")
	fs.DurationVar(&c.ShutdownDeadline, "shutdown-deadline", c.ShutdownDeadline, "How long calls in flight may take to end after SIGTERM.")
	fs.DurationVar(&c.ReconcileInterval, "reconcile-interval", c.ReconcileInterval, "Time between two looks for what nobody owns: records whose claim is gone, partitions and files without a record.")
	fs.DurationVar(&c.OrphanGrace, "orphan-grace", c.OrphanGrace, "How long a claim must be gone before it is undone without the kubelet, which tears a pod down after its claim may be gone already.")
	fs.BoolVar(&c.WatchOpenDevices, "watch-open-devices", c.WatchOpenDevices, "Before a claim that is gone is undone, look in /proc for programs that have its GPUs open. Needs the host's pid namespace.")

	fs.Var(&c.Conflicts, "conflicts", "What follows when something else on this node hands out or cuts up the same GPUs, by kind (device-plugin, dra-plugin, mig-manager): \"refuse\" taints all devices and prepares no new claim, \"warn\" tells, \"ignore\" does not. As in device-plugin=warn,mig-manager=ignore; kinds that are not named are refused.")

	fs.DurationVar(&c.HealthInterval, "health-interval", c.HealthInterval, "Time between two readings of each GPU's health. Errors that the driver reports do not wait for it.")
	fs.DurationVar(&c.HealthHoldDown, "health-hold-down", c.HealthHoldDown, "How long a GPU that was ill must be well before it is offered again; each time that the same fault comes back soon doubles it.")
	fs.StringVar(&c.HealthTable, "health-table", c.HealthTable, "YAML file whose rows replace those of the built-in table of faults. Empty means the built-in one alone.")
	fs.BoolVar(&c.HealthEvict, "health-evict", c.HealthEvict, "Taint what is lost with NoExecute, so that its pods are evicted, instead of NoSchedule.")
	fs.BoolVar(&c.HealthReset, "health-reset", c.HealthReset, "Reset a GPU by nvidia-smi when its driver asks for that and nobody uses it.")
	fs.StringVar(&c.HealthKernelLog, "health-kernel-log", c.HealthKernelLog, "Kernel log (/dev/kmsg) to read for errors of GPUs that the GPU driver's library does not report. Empty switches it off.")
	fs.BoolVar(&c.ClaimStatus, "claim-status", c.ClaimStatus, "Write the condition Ready of each device into the status of its claim. Needs the right to do so.")
}

// EnvName is the environment variable of a flag: upper case, dashes to underscores.
func EnvName(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

// ApplyEnv sets every flag of the set that was not given on the command line from its
// environment variable, if that is present. A flag wins over its variable.
func ApplyEnv(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		value, ok := lookup(EnvName(f.Name))
		if !ok || value == "" {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", EnvName(f.Name), err))
		}
	})
	return errors.Join(errs...)
}

// DataDir is where sockets and state of this driver live.
func (c *Config) DataDir() string { return filepath.Join(c.KubeletPluginsDir, c.DriverName) }

// maxSocketPath is the longest path of a unix socket: sun_path has 108 bytes, one for the NUL.
const maxSocketPath = 107

// Validate checks every setting and returns all faults at once, each naming the flag, its
// value and what is allowed.
func (c *Config) Validate() error {
	var f faults
	c.checkNames(&f)
	c.checkPaths(&f)
	c.checkLimits(&f)
	slices.SortFunc(f, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(f...)
}

// faults collects what is wrong.
type faults []error

func (f *faults) add(flag string, value any, allowed string) {
	if s, ok := value.(string); ok {
		value = fmt.Sprintf("%q", s)
	}
	*f = append(*f, fmt.Errorf("--%s: %v is not allowed: %s", flag, value, allowed))
}

// Shares are the declarations of shared devices that are for this node, in the order in which
// they count.
func (c *Config) Shares() ([]shares.Declaration, error) {
	declared, err := shares.Parse(c.SharedDevices)
	if err != nil {
		return nil, fmt.Errorf("--shared-devices: %w", err)
	}
	plugin, err := deviceplugin.Parse(c.DevicePluginConfig)
	if err != nil {
		return nil, fmt.Errorf("--device-plugin-config: %w", err)
	}
	return shares.For(c.NodeName, append(declared, plugin.Declarations...)), nil
}

// Selection says which GPUs of this node are served. Validate tells whether it can be read.
func (c *Config) Selection() selection.Selection {
	include, _ := selection.Parse(c.IncludeGPUs)
	exclude, _ := selection.Parse(c.ExcludeGPUs)
	return selection.For(c.NodeName, include, exclude)
}

// podUID keeps the name of the socket, of which the UID is a part, in its directory.
var podUID = regexp.MustCompile(`^[A-Za-z0-9-]{1,63}$`)

// validDriverName tells whether the name can be both what Kubernetes takes for a driver and
// what CDI takes for a vendor: of all DNS names CDI refuses those that begin with a digit.
func validDriverName(name string) bool {
	return len(validation.IsDNS1123Subdomain(name)) == 0 && len(name) <= 63 && (name[0] < '0' || name[0] > '9')
}

func (c *Config) checkNames(f *faults) {
	if problems := validation.IsDNS1123Subdomain(c.NodeName); len(problems) > 0 {
		f.add("node-name", c.NodeName, "give the node's name, by the downward API spec.nodeName")
	}
	if !validDriverName(c.DriverName) {
		f.add("driver-name", c.DriverName, "use a DNS name of at most 63 characters in lower case that starts with a letter")
	}
	if c.PodUID != "" && !podUID.MatchString(c.PodUID) {
		f.add("pod-uid", c.PodUID, "use at most 63 letters, digits and '-', by the downward API metadata.uid, or nothing")
	}
	vocabularies := []string{string(device.VocabularyFull), string(device.VocabularyMinimal)}
	if !slices.Contains(vocabularies, c.SliceVocabulary) {
		f.add("slice-vocabulary", c.SliceVocabulary, "use one of "+strings.Join(vocabularies, ", "))
	}
	if choices := []string{MIGNone, MIGStatic, MIGOnDemand}; !slices.Contains(choices, c.MIGDevices) {
		f.add("mig-devices", c.MIGDevices, "use one of "+strings.Join(choices, ", "))
	}
	declared, err := c.Shares()
	if err != nil {
		*f = append(*f, err)
	}
	for _, d := range declared {
		if d.Enforcement == device.EnforcedByMPS && !c.MPS {
			f.add("mps", c.MPS, "devices of this node are declared as shared by MPS, so it must be true; or declare another enforcement")
			break
		}
	}
	c.checkLayouts(f)
	c.checkSelection(f)
	for flag, address := range map[string]string{"http-address": c.HTTPAddress, "grpc-health-address": c.HealthAddress} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			f.add(flag, address, "use host:port or :port, or nothing to switch it off")
		}
	}
}

func (c *Config) checkSelection(f *faults) {
	for flag, text := range map[string]string{"include-gpus": c.IncludeGPUs, "exclude-gpus": c.ExcludeGPUs} {
		if _, err := selection.Parse(text); err != nil {
			*f = append(*f, fmt.Errorf("--%s: %w", flag, err))
		}
	}
}

func (c *Config) checkLayouts(f *faults) {
	if c.MIGLayout != "" && c.MIGLayoutFile == "" {
		f.add("mig-layout", c.MIGLayout, "give --mig-layout-file, too")
	}
	if c.MIGLayoutFile == "" {
		return
	}
	if !filepath.IsAbs(c.MIGLayoutFile) {
		f.add("mig-layout-file", c.MIGLayoutFile, "use an absolute path")
	}
	if c.MIGDevices == MIGNone {
		f.add("mig-devices", c.MIGDevices, "with --mig-layout-file use "+MIGStatic+" or "+MIGOnDemand)
	}
}

func (c *Config) checkPaths(f *faults) {
	if log := c.HealthKernelLog; log != "" && !filepath.IsAbs(log) {
		f.add("health-kernel-log", log, "use an absolute path, or nothing to switch it off")
	}
	for flag, path := range c.directories() {
		if !filepath.IsAbs(path) {
			f.add(flag, path, "use an absolute path")
		}
	}
	if socket := c.longestSocket(); len(socket) > maxSocketPath {
		f.add("kubelet-plugins-dir", c.KubeletPluginsDir, fmt.Sprintf(
			"the socket %s has %d bytes and a unix socket's path at most %d: shorten the directory or --driver-name",
			socket, len(socket), maxSocketPath))
	}
}

func (c *Config) checkLimits(f *faults) {
	// Written so that NaN, which compares with nothing, is refused too.
	if finite := c.APIQPS > 0 && c.APIQPS <= math.MaxFloat32; !finite || c.APIBurst <= 0 {
		f.add("kube-api-qps", fmt.Sprintf("%v with a burst of %d", c.APIQPS, c.APIBurst), "both must be finite numbers over 0")
	}
	if c.RescanInterval < time.Second {
		f.add("rescan-interval", c.RescanInterval, "at least 1s")
	}
	if c.HolderWait < 0 || c.HolderWait > 40*time.Second {
		f.add("holder-wait", c.HolderWait, "from 0s to 40s: the kubelet gives up after 45s")
	}
	if c.ReconcileInterval < time.Second {
		f.add("reconcile-interval", c.ReconcileInterval, "at least 1s")
	}
	if c.OrphanGrace < 0 {
		f.add("orphan-grace", c.OrphanGrace, "at least 0s")
	}
	if c.HealthInterval < time.Second || c.HealthInterval > 25*time.Second {
		f.add("health-interval", c.HealthInterval, "from 1s to 25s: the kubelet forgets health after 30s")
	}
	if c.HealthHoldDown < 0 || c.HealthHoldDown > time.Hour {
		f.add("health-hold-down", c.HealthHoldDown, "from 0s to 1h")
	}
	if c.ShutdownDeadline < 0 {
		f.add("shutdown-deadline", c.ShutdownDeadline, "at least 0s")
	}
}

func (c *Config) directories() map[string]string {
	return map[string]string{
		"driver-root": c.DriverRoot.Host, "driver-root-mount": c.DriverRoot.Container,
		"dev-root": c.DevRoot.Host, "dev-root-mount": c.DevRoot.Container,
		"proc-root-mount": c.ProcRoot, "sys-root-mount": c.SysRoot,
		"kubelet-plugins-dir": c.KubeletPluginsDir, "kubelet-registry-dir": c.KubeletRegistryDir,
		"cdi-dir": c.CDIDir, "cdi-hook": c.CDIHook, "limit-hook": c.LimitHook,
	}
}

// longestSocket is the DRA socket, which the library does not shorten: dra-<pod UID>.sock.
func (c *Config) longestSocket() string {
	name := "dra.sock"
	if c.PodUID != "" {
		name = "dra-" + c.PodUID + ".sock"
	}
	return filepath.Join(c.DataDir(), name)
}
