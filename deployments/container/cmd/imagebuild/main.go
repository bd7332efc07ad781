// Command imagebuild makes a container image from a description, without a container engine
// and without a registry.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/deployments/container/internal/assemble"
	"github.com/gpu-dra/driver/deployments/container/internal/build"
	"github.com/gpu-dra/driver/deployments/container/internal/debian"
	"github.com/gpu-dra/driver/deployments/container/internal/spec"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "imagebuild:", err)
		os.Exit(1)
	}
}

type options struct {
	config, out, name, platform, cache string
	definitions                        map[string]string
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "imagebuild --config image.yaml --out image.tar",
		Short: "Make a container image without a container engine and without a registry",
		Long: "Makes an image from Debian packages and given files, as an archive for `ctr images import`,\n" +
			"`docker load` or `podman load`. Equal inputs give equal bytes. SOURCE_DATE_EPOCH sets all times.",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "image.yaml", "description of the image")
	f.StringVar(&o.out, "out", "", "archive to write (required)")
	f.StringVar(&o.name, "name", "", "reference of the image, in place of the description's")
	f.StringVar(&o.platform, "platform", "linux/"+runtime.GOARCH, "linux/ARCHITECTURE, Go's names")
	f.StringVar(&o.cache, "cache", defaultCache(), "folder for fetched packages")
	f.StringToStringVar(&o.definitions, "define", nil, "KEY=VALUE for ${KEY} in the description (repeatable)")
	if err := cmd.MarkFlagRequired("out"); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}
	return cmd
}

func defaultCache() string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "imagebuild")
	}
	return filepath.Join(os.TempDir(), "imagebuild")
}

func run(ctx context.Context, o options) error {
	start := time.Now()
	description, err := spec.Read(o.config, o.definitions)
	if err != nil {
		return err
	}
	if o.name != "" {
		description.Name = o.name
	}
	system, architecture, _ := strings.Cut(o.platform, "/")
	if system != "linux" || architecture == "" {
		return fmt.Errorf("platform %q: only linux/ARCHITECTURE is possible", o.platform)
	}
	created, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	// Debian's and Go's names agree for amd64 and arm64, the two that are supported.
	packages := &debian.Fetcher{Dir: filepath.Join(o.cache, "packages"), Arch: architecture, Run: debian.Exec}
	img, err := build.Image(ctx, description, packages, architecture, created)
	if err != nil {
		return err
	}
	if err := assemble.Write(o.out, description.Name, img); err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("digest: %w", err)
	}
	fmt.Printf("%s %s -> %s (%.1f s)\n", description.Name, digest, o.out, time.Since(start).Seconds())
	return nil
}

// sourceDate reads SOURCE_DATE_EPOCH, seconds since 1970; unset means 1970 itself.
func sourceDate(s string) (time.Time, error) {
	if s == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(s, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: must be seconds since 1970", s)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
