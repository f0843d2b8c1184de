package tokens

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/logplane/logplane/projection"
)

// Secrets fills the Secrets of type 'kubernetes.io/service-account-token', which hold a token.
type Secrets struct {
	// Tokens issues the tokens of these Secrets; nil if this server has no issuer.
	Tokens *Tokens
	// Account reads a service account by its namespace and name in a view.
	Account func(ctx context.Context, v *projection.View, key string) (object runtime.Object, found bool, err error)
	// RootCA is the certificate that a Secret holds besides its token.
	RootCA []byte
}

// Fill gives a Secret of type 'kubernetes.io/service-account-token' the data that upstream's token controller would add
// later. Fill refuses a Secret that it cannot fill now, because nobody would fill that Secret later.
func (s Secrets) Fill(ctx context.Context, v *projection.View, before, after runtime.Object) error {
	secret, ok := after.(*core.Secret)
	if !ok {
		return fmt.Errorf("fill a %T: not a Secret", after)
	}
	if secret.Type != core.SecretTypeServiceAccountToken {
		return nil
	}
	name := secret.Annotations[core.ServiceAccountNameKey]
	object, found, err := s.Account(ctx, v, secret.Namespace+"/"+name)
	if err != nil {
		return fmt.Errorf("read service account '%s' of namespace '%s': %w", name, secret.Namespace, err)
	}
	account, _ := object.(*corev1.ServiceAccount) // nil if there is no such account
	uid := secret.Annotations[core.ServiceAccountUIDKey]
	theirs := found && (uid == "" || uid == string(account.UID))
	if theirs && s.Tokens.Issues() && !s.Tokens.config.NoSecrets {
		return s.Tokens.Fill(ctx, secret, account, s.RootCA)
	}
	if before != nil || len(secret.Data[core.ServiceAccountTokenKey]) > 0 {
		return nil
	}
	annotations := field.NewPath("metadata", "annotations")
	var wrong *field.Error
	switch {
	case !found:
		wrong = field.Invalid(annotations.Key(core.ServiceAccountNameKey), name, "there is no such service account: create it first, and then this Secret")
	case !theirs:
		wrong = field.Invalid(annotations.Key(core.ServiceAccountUIDKey), uid, "the service account has another uid: leave this annotation out")
	case s.Tokens == nil:
		wrong = field.Forbidden(field.NewPath("type"), "there is no key to sign its token with: start each process with --service-account-issuer and --service-account-signing-key-file")
	default: // other servers sign the tokens that this process verifies
		return nil
	}
	return apierrors.NewInvalid(core.Kind("Secret"), secret.Name, field.ErrorList{wrong})
}
