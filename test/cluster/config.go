package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-dra/driver/test/cluster/internal/render"
)

// ErrConfig is wrapped by every error about a setting.
var ErrConfig = errors.New("cluster setting")

// Limits of the address plan: 198.18.0.0/15 is cut into slots, one per cluster.
const (
	maxNodes = 16
	// maxState is the longest state folder: below it, the path of a unix socket (a shim's,
	// with a 64-digit name) must stay under 108 bytes.
	maxState = 32
)

// Features of a cluster, other than a literal list of gates.
const (
	// FeaturesDefault is what Kubernetes has on by default.
	FeaturesDefault = "default"
	// FeaturesAllDRA adds everything of Dynamic Resource Allocation that is off by default.
	FeaturesAllDRA = "alldra"
)

// allDRAGates is what Kubernetes 1.37 has off by default, with what those gates depend on.
const allDRAGates = "DRADerivedAttributes=true,DRADeviceCompatibilityGroups=true,DRAListTypeAttributes=true," +
	"DRANodeAllocatableResources=true,DRAOptionalNodeOperations=true,DRAPartitionableDevicesType=true,DRAResourcePoolStatus=true"

const allDRARuntimeConfig = "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true,resource.k8s.io/v1alpha3=true"

// Config is what a cluster is to be. The zero value of an optional field means Kubernetes'
// own default.
type Config struct {
	// Name tells clusters on one machine apart: a lower-case word of at most 11 letters.
	Name string
	// Bin is the folder of the built programs, absolute.
	Bin string
	// StateRoot is the folder below which each cluster has its folder. It is short: unix
	// sockets lie in it. It must not be on overlayfs, since containerd's overlays lie in it.
	StateRoot string
	// Nodes is how many nodes there are at least, 1 to 16.
	Nodes int
	// Features is FeaturesDefault, FeaturesAllDRA or "Gate=true,Other=false".
	Features string
	// RuntimeConfig is the API server's --runtime-config; empty leaves it to Features.
	RuntimeConfig string
	// Verbosity is the log level of the Kubernetes components.
	Verbosity int
	// MaxPods per node, SyncFrequency of the kubelet and APIQPS of the controller manager
	// and the scheduler are Kubernetes' defaults (110, 1m, 20 and 50) when zero.
	MaxPods       int
	SyncFrequency time.Duration
	APIQPS        int
	// Binds are mounted into nodes before their daemons start.
	Binds []Bind
}

// Bind is one path of the machine that nodes see at another place, submounts included.
type Bind struct {
	// Node is the number of the node, or -1 for all.
	Node int
	// Source and Target are absolute paths. A missing Target is made, as a folder.
	Source, Target string
}

// FromEnvironment reads the settings from variables named CLUSTER_*; getenv is os.Getenv.
func FromEnvironment(getenv func(string) string) (Config, error) {
	c := Config{Name: "dev", Nodes: 1, Features: FeaturesDefault, Verbosity: 2, StateRoot: "/var/tmp/kc"}
	var errs []error
	text := func(key string, to *string) {
		if v := getenv(key); v != "" {
			*to = v
		}
	}
	number := func(key string, to *int) {
		if v := getenv(key); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: %s=%q must be a number", ErrConfig, key, v))
				return
			}
			*to = n
		}
	}
	text("CLUSTER_NAME", &c.Name)
	text("CLUSTER_BIN", &c.Bin)
	text("CLUSTER_STATE_ROOT", &c.StateRoot)
	text("CLUSTER_FEATURES", &c.Features)
	text("CLUSTER_RUNTIME_CONFIG", &c.RuntimeConfig)
	number("CLUSTER_NODES", &c.Nodes)
	number("CLUSTER_V", &c.Verbosity)
	number("CLUSTER_MAX_PODS", &c.MaxPods)
	number("CLUSTER_API_QPS", &c.APIQPS)
	if v := getenv("CLUSTER_SYNC_FREQUENCY"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: CLUSTER_SYNC_FREQUENCY=%q must be a duration such as 10s", ErrConfig, v))
		}
		c.SyncFrequency = d
	}
	binds, err := ParseBinds(strings.Fields(getenv("CLUSTER_BINDS")))
	c.Binds = binds
	errs = append(errs, err)
	if c.Bin == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = "/var/tmp"
		}
		c.Bin = filepath.Join(cache, "test-cluster", "bin")
	}
	return c, errors.Join(errs...)
}

// ParseBinds reads "SOURCE:TARGET" or, for one node, "NODE@SOURCE:TARGET".
func ParseBinds(list []string) ([]Bind, error) {
	var binds []Bind
	for _, s := range list {
		b := Bind{Node: -1}
		rest := s
		if node, after, ok := strings.Cut(s, "@"); ok {
			n, err := strconv.Atoi(node)
			if err != nil || n < 0 || n >= maxNodes {
				return nil, fmt.Errorf("%w: bind %q: node %q must be 0 to %d", ErrConfig, s, node, maxNodes-1)
			}
			b.Node, rest = n, after
		}
		var ok bool
		b.Source, b.Target, ok = strings.Cut(rest, ":")
		if !ok || !filepath.IsAbs(b.Source) || !filepath.IsAbs(b.Target) {
			return nil, fmt.Errorf("%w: bind %q: must be [NODE@]/SOURCE:/TARGET", ErrConfig, s)
		}
		binds = append(binds, b)
	}
	return binds, nil
}

// namePattern keeps the link "kc-NAME" within the 15 bytes of an interface name.
var namePattern = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,9}[a-z0-9])?$`)

// Validate reports every faulty setting at once.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if !namePattern.MatchString(c.Name) {
		fault("name %q must be 1 to 11 lower-case letters, digits or dashes", c.Name)
	}
	if !filepath.IsAbs(c.Bin) {
		fault("bin %q must be an absolute path", c.Bin)
	}
	if !filepath.IsAbs(c.StateRoot) || len(c.State()) > maxState {
		fault("state folder %q must be an absolute path of at most %d bytes: unix sockets lie below it; set CLUSTER_STATE_ROOT", c.State(), maxState)
	}
	if c.Nodes < 1 || c.Nodes > maxNodes {
		fault("nodes %d must be 1 to %d", c.Nodes, maxNodes)
	}
	if c.MaxPods < 0 || c.APIQPS < 0 || c.SyncFrequency < 0 {
		fault("max pods %d, API QPS %d and sync frequency %s must not be negative", c.MaxPods, c.APIQPS, c.SyncFrequency)
	}
	if _, err := render.ParseGates(c.gates()); err != nil {
		fault("features %q: %w (or %s, %s)", c.Features, err, FeaturesDefault, FeaturesAllDRA)
	}
	return errors.Join(errs...)
}

// State is the cluster's own folder.
func (c Config) State() string { return filepath.Join(c.StateRoot, c.Name) }

// gates is the value of --feature-gates, empty for Kubernetes' defaults.
func (c Config) gates() string {
	switch c.Features {
	case FeaturesDefault, "":
		return ""
	case FeaturesAllDRA:
		return allDRAGates
	default:
		return c.Features
	}
}

func (c Config) runtimeConfig() string {
	if c.RuntimeConfig == "" && c.Features == FeaturesAllDRA {
		return allDRARuntimeConfig
	}
	return c.RuntimeConfig
}
