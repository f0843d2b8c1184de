package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// ofAccounts selects the Secrets that hold tokens of service accounts.
var ofAccounts = metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()}

// accountsOfState returns a task for each service account that a Secret with a token names.
func (l *Lifecycle) accountsOfState(ctx context.Context) ([]task, error) {
	secrets, err := l.client.CoreV1().Secrets("").List(ctx, ofAccounts)
	if err != nil {
		return nil, fmt.Errorf("list the tokens of service accounts: %w", err)
	}
	accounts := map[task]bool{}
	for _, s := range secrets.Items {
		accounts[taskOf(accountTask, s.Namespace, s.Annotations[corev1.ServiceAccountNameKey])] = true
	}
	return slices.Collect(maps.Keys(accounts)), nil
}

// revokeTokens deletes the Secrets that hold tokens of a service account that is gone, as upstream's token controller
// does. The tokens became invalid when the account was deleted.
func (l *Lifecycle) revokeTokens(ctx context.Context, t task) error {
	namespace, name := objectNamespace(t), objectName(t)
	account, err := l.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return fmt.Errorf("get service account '%s': %w", t.name, err)
	}
	client := l.client.CoreV1().Secrets(namespace)
	secrets, err := client.List(ctx, ofAccounts)
	if err != nil {
		return fmt.Errorf("list the tokens of service account '%s': %w", t.name, err)
	}
	var failed []error
	for i := range secrets.Items {
		s := &secrets.Items[i]
		uid := types.UID(s.Annotations[corev1.ServiceAccountUIDKey])
		if s.Annotations[corev1.ServiceAccountNameKey] != name || !gone && (uid == "" || uid == account.UID) {
			continue
		}
		err := client.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete token '%s' of service account '%s': %w", s.Name, t.name, err))
		}
	}
	return errors.Join(failed...)
}
