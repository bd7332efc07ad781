// Command gpu-webhook refuses claims, claim templates and device classes whose configuration for
// this driver no node could prepare. It only wires flags, logs and signals to package admission.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/admission"
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

// settings are the flags.
type settings struct {
	driver, address, certFile, keyFile string
}

func command(version string) *cobra.Command {
	s := settings{}
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:           "gpu-webhook",
		Short:         "Refuses configurations for the GPU driver that no node could prepare",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			return run(cmd.Context(), s, version)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.driver, "driver-name", "gpu.nvidia.com", "name of the DRA driver whose configurations are checked")
	flags.StringVar(&s.address, "address", ":8443", "address to serve on")
	flags.StringVar(&s.certFile, "tls-cert-file", "", "file of the serving certificate; read again for each connection, so that a renewed one is used at once")
	flags.StringVar(&s.keyFile, "tls-private-key-file", "", "file of the certificate's key")
	logsapi.AddFlags(logging, flags)
	return cmd
}

func run(ctx context.Context, s settings, version string) error {
	certificate, err := admission.NewCertificate(s.certFile, s.keyFile)
	if err != nil {
		return fmt.Errorf("--tls-cert-file, --tls-private-key-file: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	klog.FromContext(ctx).Info("Serving", "version", version, "address", listener.Addr().String(), "driver", s.driver)
	return admission.Serve(ctx, listener, certificate, admission.Handler(admission.Reviewer{Driver: s.driver}))
}
