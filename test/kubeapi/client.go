package kubeapi

import (
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

// URL of the server, without a trailing slash.
func (s *Server) URL() string {
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return scheme + "://" + s.address
}

// RESTConfig returns a client configuration for user, whose name shows in [Request].User. Clients
// made from it are not throttled.
func (s *Server) RESTConfig(user string) *rest.Config {
	return &rest.Config{
		Host: s.URL(), BearerToken: user, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca},
	}
}

// Client returns a client for user.
func (s *Server) Client(user string) (kubernetes.Interface, error) {
	c, err := kubernetes.NewForConfig(s.RESTConfig(user))
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return c, nil
}

// WriteKubeconfig writes a kubeconfig for user to path, for another process.
func (s *Server) WriteKubeconfig(path, user string) error {
	const name = "kubeapi"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: s.URL(), CertificateAuthorityData: s.ca}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: user}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	c.CurrentContext = name
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// Put stores objects as they are, status and UID included, and replaces those that exist. It is for
// setting a scene; it is not in the request log.
func (s *Server) Put(objects ...runtime.Object) error {
	for _, given := range objects {
		o, ok := given.DeepCopyObject().(storage.Object)
		if !ok {
			return fmt.Errorf("put %T: it has no metadata", given)
		}
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			return fmt.Errorf("put %T: %w", given, err)
		}
		r, ok := s.store.ByKind(kinds[0])
		if !ok {
			return fmt.Errorf("put %s: this server does not serve it", kinds[0])
		}
		if r.Namespaced && o.GetNamespace() == "" {
			o.SetNamespace("default")
		}
		if err := s.store.Put(r, o); err != nil {
			return fmt.Errorf("put %s %s: %w", r.Kind, storage.KeyOf(o), err)
		}
	}
	return nil
}

// Load puts every object of a YAML stream. Fields that the types do not have are an error.
func (s *Server) Load(in io.Reader) error {
	docs := utilyaml.NewYAMLOrJSONDecoder(in, 4096)
	strict := serializerStrict()
	for n := 1; ; n++ {
		var raw runtime.RawExtension
		if err := docs.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
		if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
			continue
		}
		o, _, err := strict.Decode(raw.Raw, nil, nil)
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
		if err := s.Put(o); err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// serializerStrict decodes JSON and refuses unknown and repeated fields.
func serializerStrict() runtime.Decoder {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return info.StrictSerializer
}
