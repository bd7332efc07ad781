// Command kubeapi runs the small API server of package kubeapi as a process, for the demo and for
// trying things by hand with kubectl.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpu-dra/driver/test/kubeapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubeapi:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("kubeapi", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "address to serve on")
	kubeconfig := flags.String("kubeconfig", "", "file to write a kubeconfig to (required)")
	user := flags.String("user", "admin", "user name in the kubeconfig")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if *kubeconfig == "" {
		return fmt.Errorf("--kubeconfig: a file to write is required")
	}
	server, err := kubeapi.Start(kubeapi.Options{Address: *listen})
	if err != nil {
		return err
	}
	for _, path := range flags.Args() { // manifests to begin with
		if err := load(server, path); err != nil {
			return err
		}
	}
	if err := server.WriteKubeconfig(*kubeconfig, *user); err != nil {
		return err
	}
	fmt.Printf("serving on %s; try: kubectl --kubeconfig=%s get resourceslices\n", server.URL(), *kubeconfig)
	<-ctx.Done()
	return server.Close()
}

func load(server *kubeapi.Server, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open manifests: %w", err)
	}
	defer file.Close()
	if err := server.Load(file); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
