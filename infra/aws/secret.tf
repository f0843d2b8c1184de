# What is in the secret is written by files.sh, and read by processes when they start. Terraform reads only its name, so
# no state has a password, a token or a key.
data "aws_secretsmanager_secret" "files" {
  name = var.secret
}
