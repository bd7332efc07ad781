package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
)

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, &out, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("%v, want the flags' help", err)
	}
	if !strings.Contains(out.String(), "-rounds") || !strings.Contains(out.String(), "memory,prepare") {
		t.Errorf("help is\n%s", out.String())
	}
}

func TestWrongFlags(t *testing.T) {
	var out bytes.Buffer
	for _, args := range [][]string{{"-rounds=many"}, {"-unknown"}, {"-only=unknown"}, {"-rounds=0"}, {"-per-round=0"}, {"argument"}} {
		if err := run(t.Context(), args, &out, &out); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

func TestDefaultBin(t *testing.T) {
	set := func(string) (string, bool) { return "/set", true }
	if got := defaultBin(set); got != "/set" {
		t.Errorf("%q, want /set", got)
	}
	unset := func(string) (string, bool) { return "", false }
	if got := defaultBin(unset); !strings.HasSuffix(got, "test-cluster/bin") {
		t.Errorf("%q, want the directory of test/cluster", got)
	}
}
