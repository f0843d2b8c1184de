package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/logplane/logplane/internal/apiserver"
)

// registerKubelets adds the flags that say how nodes are reached. They have kube-apiserver's names.
func registerKubelets(flags *pflag.FlagSet, k *apiserver.Kubelets) {
	flags.StringVar(&k.CertFile, "kubelet-client-certificate", "", "certificate by which kubelets know this process; with it, log, exec, attach, port-forward and proxy are served. It, --kubelet-client-key and --kubelet-certificate-authority are read again when they change")
	flags.StringVar(&k.KeyFile, "kubelet-client-key", "", "private key of --kubelet-client-certificate")
	flags.StringVar(&k.CAFile, "kubelet-certificate-authority", "", "authorities of the kubelets' own certificates; without it, they are not verified")
	flags.StringSliceVar(&k.AddressTypes, "kubelet-preferred-address-types", addressTypes, "which address of a node is called, the best first")
}

func checkKubelets(k apiserver.Kubelets) error {
	if err := together("--kubelet-client-certificate", k.CertFile, "--kubelet-client-key", k.KeyFile); err != nil {
		return err
	}
	if k.CAFile != "" && !k.Configured() {
		return errors.New("--kubelet-certificate-authority needs --kubelet-client-certificate")
	}
	for _, name := range k.AddressTypes {
		if !slices.Contains(addressTypes, name) {
			return fmt.Errorf("--kubelet-preferred-address-types has '%s': it must be of '%s'", name, strings.Join(addressTypes, "', '"))
		}
	}
	return nil
}

// addressTypes are the types of a Node's addresses, in upstream's order.
var addressTypes = []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}
