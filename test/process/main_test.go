package process_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

func TestMain(m *testing.M) {
	tracer.Main()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// Tests wait for their processes most of the time: more of them run at once than there are
	// processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// MPS control daemons see a /dev/shm and a /tmp of their own, so nothing of the node may lie there.
	dir, err := os.MkdirTemp("/var/tmp", "p")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = errors.Join(os.Setenv("TMPDIR", dir), process.Build(context.Background(), dir, "-race"), process.BuildDaemon(context.Background(), dir, "-race"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
