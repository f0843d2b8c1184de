// Package e2e tests the product as its users use it: through the built binary, with the real kubectl and client-go. The
// binary is LOGPLANE_BINARY, kubectl is KUBECTL; both default to bin/ of the checkout.
package e2e

import "time"

// startTimeout is generous: the race build starts in about a second, but takes several on a busy machine.
const startTimeout = 60 * time.Second

// kubeconfig is the file that 'logplane dev' writes into its folder.
func kubeconfig(folder string) string { return folder + "/kubeconfig" }
