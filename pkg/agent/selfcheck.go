package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// callOwnSocket makes a real call, for no claim, over the socket that the kubelet uses: a plugin
// whose server hangs fails it.
func (a *Agent) callOwnSocket(ctx context.Context) error {
	if !a.serving.Load() {
		return nil // still starting: a restart would not help
	}
	socket := a.socket()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("own socket %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := drapb.NewDRAPluginClient(conn).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}); err != nil {
		return fmt.Errorf("own socket %s does not answer: %w", socket, err)
	}
	return nil
}

// socket is where the library listens.
func (a *Agent) socket() string {
	if a.config.PodUID == "" {
		return filepath.Join(a.config.DataDir(), "dra.sock")
	}
	return filepath.Join(a.config.DataDir(), "dra-"+a.config.PodUID+".sock")
}
