package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// environment is a getenv over a map.
func environment(m map[string]string) func(string) string {
	return func(key string) string { return m[key] }
}

func TestDefaults(t *testing.T) {
	c, err := FromEnvironment(environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.gates() != "" || c.runtimeConfig() != "" || c.SyncFrequency != 0 || c.APIQPS != 0 || c.MaxPods != 0 {
		t.Errorf("the defaults are not Kubernetes' own: %+v", c)
	}
}

func TestFromEnvironment(t *testing.T) {
	got, err := FromEnvironment(environment(map[string]string{
		"CLUSTER_NAME": "x", "CLUSTER_BIN": "/b", "CLUSTER_STATE_ROOT": "/s", "CLUSTER_NODES": "2", "CLUSTER_FEATURES": "alldra",
		"CLUSTER_RUNTIME_CONFIG": "a/v1=true", "CLUSTER_V": "4", "CLUSTER_MAX_PODS": "50", "CLUSTER_SYNC_FREQUENCY": "10s",
		"CLUSTER_API_QPS": "500", "CLUSTER_BINDS": "/a:/b 1@/c:/d",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Name: "x", Bin: "/b", StateRoot: "/s", Nodes: 2, Features: "alldra", RuntimeConfig: "a/v1=true", Verbosity: 4,
		MaxPods: 50, SyncFrequency: 10 * time.Second, APIQPS: 500,
		Binds: []Bind{{-1, "/a", "/b"}, {1, "/c", "/d"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFromEnvironmentNamesEveryFault(t *testing.T) {
	_, err := FromEnvironment(environment(map[string]string{
		"CLUSTER_NODES": "two", "CLUSTER_SYNC_FREQUENCY": "10", "CLUSTER_BINDS": "a:b",
	}))
	for _, want := range []string{`CLUSTER_NODES="two"`, `CLUSTER_SYNC_FREQUENCY="10"`, `"a:b"`} {
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in: %v", want, err)
		}
	}
}

func TestValidate(t *testing.T) {
	valid := Config{Name: "dev", Bin: "/b", StateRoot: "/var/tmp/kc", Nodes: 1, Features: FeaturesDefault}
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"valid":                {func(*Config) {}, ""},
		"longest name":         {func(c *Config) { c.Name = "abcdefghijk" }, ""},
		"name too long":        {func(c *Config) { c.Name = "abcdefghijkl" }, "name"},
		"name of a folder":     {func(c *Config) { c.Name = "../x" }, "name"},
		"name ends with dash":  {func(c *Config) { c.Name = "a-" }, "name"},
		"relative bin":         {func(c *Config) { c.Bin = "bin" }, "bin"},
		"relative state":       {func(c *Config) { c.StateRoot = "x" }, "state"},
		"state too long":       {func(c *Config) { c.StateRoot = "/" + strings.Repeat("x", maxState) }, "CLUSTER_STATE_ROOT"},
		"no node":              {func(c *Config) { c.Nodes = 0 }, "nodes"},
		"too many nodes":       {func(c *Config) { c.Nodes = maxNodes + 1 }, "nodes"},
		"negative":             {func(c *Config) { c.APIQPS = -1 }, "negative"},
		"unknown features":     {func(c *Config) { c.Features = "everything" }, "features"},
		"literal gates":        {func(c *Config) { c.Features = "A=true" }, ""},
		"all of DRA":           {func(c *Config) { c.Features = FeaturesAllDRA }, ""},
		"features left empty":  {func(c *Config) { c.Features = "" }, ""},
		"two faults, one name": {func(c *Config) { c.Nodes, c.Bin = 0, "" }, "nodes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := valid
			tc.change(&c)
			err := c.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if _, err := New(c, nil); (err != nil) != (tc.want != "") {
				t.Errorf("New returned %v", err)
			}
		})
	}
}

// The longest socket path that can come up still fits: "n15/s/sh/" and 64 digits.
func TestLongestSocketPathFits(t *testing.T) {
	if n := maxState + len("/n15/s/sh/") + 64; n > 107 {
		t.Errorf("a shim's socket path can have %d bytes, at most 107 are possible", n)
	}
}

func TestFeatures(t *testing.T) {
	c := Config{Features: FeaturesAllDRA}
	if !strings.Contains(c.gates(), "DRAListTypeAttributes=true") || !strings.Contains(c.runtimeConfig(), "resource.k8s.io/v1beta1=true") {
		t.Errorf("alldra: gates %q, runtime configuration %q", c.gates(), c.runtimeConfig())
	}
	c.RuntimeConfig = "a=true"
	if c.runtimeConfig() != "a=true" {
		t.Errorf("a given runtime configuration was replaced by %q", c.runtimeConfig())
	}
}

func TestParseBinds(t *testing.T) {
	for _, bad := range []string{"", "/a", "a:/b", "/a:b", "x@/a:/b", "-1@/a:/b", "16@/a:/b"} {
		if _, err := ParseBinds([]string{bad}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "bind") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestParseBindsReadsWhatItWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.StringMatching(`/[a-z0-9./_-]{0,12}`)
		want := Bind{Node: rapid.IntRange(-1, maxNodes-1).Draw(t, "node"), Source: path.Draw(t, "source"), Target: path.Draw(t, "target")}
		s := want.Source + ":" + want.Target
		if want.Node >= 0 {
			s = strings.Join([]string{itoa(want.Node), s}, "@")
		}
		got, err := ParseBinds([]string{s})
		if err != nil || len(got) != 1 || got[0] != want {
			t.Fatalf("%q: got %+v, %v; want %+v", s, got, err, want)
		}
	})
}

func itoa(i int) string { return strings.TrimPrefix(NodeName(i), "node-") }

func FuzzParseBinds(f *testing.F) {
	f.Add("1@/a:/b")
	f.Add("@:")
	f.Fuzz(func(t *testing.T, s string) {
		binds, err := ParseBinds([]string{s})
		if err == nil && (len(binds) != 1 || binds[0].Source[0] != '/' || binds[0].Target[0] != '/') {
			t.Errorf("%q became %+v", s, binds)
		}
	})
}
