package process_test

import (
	"context"
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
	dir, err := os.MkdirTemp("", "plugin")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		err = process.Build(context.Background(), dir, "-race")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
